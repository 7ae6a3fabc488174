#include "core/source/hub.h"
