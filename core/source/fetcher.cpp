#include "core/source/fetcher.h"
