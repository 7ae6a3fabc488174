#include "core/source/url.h"
