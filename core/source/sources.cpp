#include "core/source/sources.h"
