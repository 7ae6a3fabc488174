#include "core/source/remote.h"
