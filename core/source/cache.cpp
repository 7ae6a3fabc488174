#include "core/source/cache.h"
