// Whether all libraries but the C library are inside this build (scripts/package).
#pragma once

namespace stfs {

#ifdef STFS_CARRIED
inline constexpr bool kIsCarried = true;
#else
inline constexpr bool kIsCarried = false;
#endif

}  // namespace stfs
