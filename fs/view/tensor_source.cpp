#include "fs/view/tensor_source.h"

namespace stfs {

Content raw(const Tensor& tensor) {
  Content content;
  content.extent(tensor.source->file, tensor.offset, tensor.length);
  return content;
}

Content part(const Tensor& tensor, const Slice& slice) {
  return slice_content(slice, tensor.source->file, tensor.offset);
}

int verify(const Tensor& tensor) { return tensor.source->file.verify(); }

timespec mtime_of(const Tensor& tensor) { return tensor.source->file.mtime(); }

}  // namespace stfs
