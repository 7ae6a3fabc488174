#include "core/source/cache_file.h"
