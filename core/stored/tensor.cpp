#include "core/stored/tensor.h"

#include <utility>

namespace stfs {

Tensor Tensor::valued() const {
  if (values == nullptr) return *this;
  Tensor out = values->tensor();
  out.name = name;
  out.path = path;
  out.shape = shape;
  return out;
}

std::uint64_t Tensor::elements() const {
  std::uint64_t product = 1;
  for (const std::uint64_t dim : shape) product *= dim;  // the header's check excludes overflow
  return product;
}

Content Tensor::content() const {
  if (computed != nullptr) return computed->content();
  Content content;
  content.extent(*locator->source, locator->offset, locator->length);
  return content;
}

timespec Tensor::mtime() const {
  if (computed == nullptr) return locator->source->mtime();
  timespec newest{};
  for (const Tensor& input : computed->inputs()) {
    const timespec mtime = input.mtime();
    if (std::pair(mtime.tv_sec, mtime.tv_nsec) > std::pair(newest.tv_sec, newest.tv_nsec)) {
      newest = mtime;
    }
  }
  return newest;
}

int Tensor::verify() const {
  return computed != nullptr ? computed->content().verify() : locator->source->verify();
}

bool are_one(const Tensor& a, const Tensor& b) {
  return a.dtype == b.dtype && a.locator && b.locator && a.locator->offset == b.locator->offset &&
         a.locator->length == b.locator->length &&
         a.locator->source->token() == b.locator->source->token();
}

}  // namespace stfs
