// Reports made by hand, for the tests of the report's page. Every call makes the same one.
//
// Thread safety: the functions may be called from any thread.
#pragma once

#include "core/report/report.h"

#include <cstddef>
#include <string_view>

namespace stfs::testing {

// A model as large as a 7B one: 32 layers, one tensor with NaN, a layer of zeros, two equal
// tensors.
Report model_report();

// With an expert in each of many layers: `count` tensors, without pictures beyond the odd ones.
Report large_report(std::size_t count);

// The first, against a base: one tensor added, one removed, one with another type, one with another
// shape, and values that differ.
Report compared_report();

// Names and texts that attack a page.
Report hostile_report();

// Nothing in it.
Report empty_report();

}  // namespace stfs::testing
