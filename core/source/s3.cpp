#include "core/source/s3.h"
