// kIsCarried is true if this build contains all its libraries except the C library, so that it runs
// on other systems (scripts/package).
#pragma once

namespace stfs {

#ifdef STFS_CARRIED
inline constexpr bool kIsCarried = true;
#else
inline constexpr bool kIsCarried = false;
#endif

}  // namespace stfs
