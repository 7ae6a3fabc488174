// Constructed reports for the tests of the report's page. Every call of a function returns the same
// report.
//
// Thread safety: the functions may be called from any thread.
#pragma once

#include "core/report/report.h"
#include "core/report/run.h"

#include <cstddef>
#include <cstdint>

namespace stfs::test {

// Returns the report of a model as large as a 7B model. `layers` must be at least 31. One tensor
// has NaN, the MLP of one layer is zero, two tensors are equal, and one tensor has larger values
// than in other layers.
Report model_report(std::uint32_t layers = 32);

// Returns a report of `count` tensors of experts in many layers, without pictures.
Report large_report(std::size_t count);

// Returns model_report() compared with a base: one tensor is added, one is removed, one has another
// type, one has another shape, and values differ.
Report compared_report();

// Returns a report with names and texts that attack a page.
Report hostile_report();

// Returns a run of ten versions. The eighth version is the first with NaN.
Run example_run();

// Returns a report of two tensors.
Report small_report();

// Returns a report without tensors.
Report empty_report();

}  // namespace stfs::test
