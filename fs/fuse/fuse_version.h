// The interface of libfuse that this program is written for; newer libraries offer it too.
#pragma once

#define FUSE_USE_VERSION 312
