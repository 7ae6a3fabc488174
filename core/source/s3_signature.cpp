#include "core/source/s3_signature.h"
