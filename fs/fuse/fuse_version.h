// The version of libfuse's interface that stfs uses (3.12); newer libraries support it too.
#pragma once

#define FUSE_USE_VERSION 312
