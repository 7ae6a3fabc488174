// Reports made by hand, for the tests of the report's page. Every call makes the same one.
//
// Thread safety: the functions may be called from any thread.
#pragma once

#include "core/report/report.h"
#include "core/report/run.h"

#include <cstddef>
#include <cstdint>

namespace stfs::test {

// A model as large as a 7B one, with at least 31 layers: one tensor has NaN, one layer is zero,
// two tensors are equal, and the values of one are larger than in other layers.
Report model_report(std::uint32_t layers = 32);

// With an expert in each of many layers: `count` tensors, without pictures beyond the odd ones.
Report large_report(std::size_t count);

// The first, against a base: one tensor added, one removed, one with another type, one with another
// shape, and values that differ.
Report compared_report();

// Names and texts that attack a page.
Report hostile_report();

// Ten versions of a model, of which the eighth breaks.
Run example_run();

// Two tensors.
Report small_report();

// Nothing in it.
Report empty_report();

}  // namespace stfs::test
