#include "core/format/archive_tensors.h"

#include "core/base/error.h"
#include "core/base/sort.h"
#include "core/base/text.h"

#include <algorithm>
#include <utility>

namespace stfs {

void add_described(std::string_view name, DType dtype, std::span<const std::uint64_t> shape,
                   std::uint64_t length, Description from, Header& header) {
  TensorRecord record{.offset = from.stored.offset + (from.deflated ? 0 : from.begin),
                      .length = length,
                      .name_begin = header.names.size(),
                      .shape_begin = header.dims.size(),
                      .name_length = static_cast<std::uint32_t>(name.size()),
                      .rank = static_cast<std::uint32_t>(shape.size()),
                      .dtype = dtype};
  if (length > 0 && (from.deflated || !from.strides.empty())) {
    record.description = static_cast<std::uint32_t>(header.described.size());
    header.described.push_back(std::move(from));
  }
  header.names += name;
  header.dims.insert(header.dims.end(), shape.begin(), shape.end());
  header.tensors.push_back(record);
}

void finish_header(Header& header, const std::string& place) {
  std::ranges::stable_sort(header.tensors, {}, &TensorRecord::offset);
  auto [order, any_equal] = sorted_order(
      header.tensors.size(), [&](std::uint32_t i) { return header.name(header.tensors[i]); });
  for (std::size_t i = 1; any_equal && i < order.size(); ++i) {
    const std::string_view name = header.name(header.tensors[order[i]]);
    if (name != header.name(header.tensors[order[i - 1]])) continue;
    throw Error(ErrorCode::kDuplicateTensor, place,
                "tensor " + in_quotes(name) + ": the name occurs twice");
  }
  header.by_name = std::move(order);
}

void Refusals::add(std::string_view name, const std::string& why) {
  if (count_++ >= kShown) return;
  header_.warnings.push_back(printable(place_) + ": tensor " + in_quotes(name) + ": " + why +
                             "; it is not shown");
}

Refusals::~Refusals() {
  if (count_ <= kShown) return;
  header_.warnings.push_back(printable(place_) + ": " + std::to_string(count_ - kShown) +
                             " more tensors are refused and not shown");
}

}  // namespace stfs
