#include "core/source/s3_credentials.h"
