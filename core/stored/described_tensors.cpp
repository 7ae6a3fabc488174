#include "core/stored/described_tensors.h"

#include "core/recipe/strided_producer.h"

#include <optional>
#include <utility>

namespace stfs {
namespace {

class Described : public ComputedTensor {
 public:
  Described(const Part& part, std::uint32_t record, TileCache& tiles, InflatedPlaces& places)
      : part_(part), record_(record), tiles_(tiles), places_(places) {}

  Tensor tensor() const override {
    Tensor tensor = part_.tensor(record_);
    tensor.locator = std::nullopt;
    tensor.computed = this;
    return tensor;
  }

  Content content() const override {
    const Description& from = description();
    const TensorRecord& record = part_.header.tensors[record_];
    Content content;
    if (from.strides.empty()) {
      content.production(inflated(stored(), *from.deflated, from.begin, record.length, places_,
                                  from.stored.offset));
      return content;
    }
    Content below;
    if (from.deflated) {
      below.production(inflated(stored(), *from.deflated, 0, from.deflated->length, places_,
                                from.stored.offset));
    } else {
      below.extent(*stored().source, from.stored.offset, from.stored.length);
    }
    content.production(strided(std::move(below),
                               {.width = type_info(record.dtype).block_bytes,
                                .begin = from.begin,
                                .shape = part_.header.shape(record),
                                .strides = from.strides},
                               tiles_, record.description));
    return content;
  }

  // The only input is the whole member, as a tensor of bytes.
  std::vector<Tensor> inputs() const override {
    const Description& from = description();
    return {{.name = part_.header.members[from.member],
             .path = {},
             .dtype = DType::kU8,
             .shape = std::span(&from.stored.length, 1),
             .length = from.stored.length,
             .locator = stored()}};
  }
  std::string_view scheme() const override {
    if (description().strides.empty()) return "deflate";
    return description().deflated ? "deflate, strided" : "strided";
  }

 private:
  const Description& description() const {
    return part_.header.described[part_.header.tensors[record_].description];
  }
  Extent stored() const {
    const ByteRange bytes = description().stored;
    return {part_.source.get(), bytes.offset, bytes.length};
  }

  const Part& part_;
  std::uint32_t record_;
  TileCache& tiles_;
  InflatedPlaces& places_;
};

}  // namespace

const ComputedTensor& DescribedTensors::add(std::uint32_t record) {
  tensors_.push_back(std::make_unique<const Described>(part_, record, tiles_, places_));
  return *tensors_.back();
}

}  // namespace stfs
