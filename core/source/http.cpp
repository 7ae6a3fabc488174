#include "core/source/http.h"
