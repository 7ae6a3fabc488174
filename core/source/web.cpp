#include "core/source/web.h"
