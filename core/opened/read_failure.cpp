#include "core/opened/read_failure.h"

#include "core/base/posix.h"
#include "core/base/text.h"
#include "core/remote/http/url.h"

#include <algorithm>
#include <cerrno>

namespace stfs {

std::vector<const Source*> sources_of(const Tensor& tensor) {
  std::vector<const Source*> sources;
  if (tensor.locator) sources.push_back(tensor.locator->source);
  for (const ComputedTensor* const computed : {tensor.computed, tensor.values}) {
    if (computed == nullptr) continue;
    for (const Tensor& input : computed->inputs()) {
      if (input.locator) sources.push_back(input.locator->source);
    }
  }
  return sources;
}

namespace {

// Returns the Error for a failed read. Its place is the source that is the cause, or `otherwise` if
// no source is the cause.
Error failure_of(std::span<const Source* const> sources, const std::string& otherwise,
                 const std::string& subject, int error) {
  const auto is_cause = [error](const Source* source) {
    if (error == ESTALE) return source->has_changed() || source->verify() != 0;
    return !source->failure_text().empty() || !source->failures().empty();
  };
  const auto cause = std::ranges::find_if(sources, is_cause);
  std::string place = otherwise, rule;
  if (cause != sources.end()) {
    place = public_name((*cause)->path());
    rule = (*cause)->failure_text();
  }
  if (rule.empty()) {
    rule = error == ESTALE ? "changed while it was open: open it again when no program writes to it"
                           : errno_text(error);
  }
  return {ErrorCode::kUnreadable, place, subject.empty() ? rule : subject + ": " + rule, error};
}

}  // namespace

Error read_failure(std::span<const Source* const> sources, const std::string& subject, int error) {
  return failure_of(sources, sources.empty() ? "" : public_name(sources.front()->path()), subject,
                    error);
}

Error read_failure(const Tensor& tensor, int error) {
  return read_failure(sources_of(tensor), "tensor " + in_quotes(tensor.name), error);
}

Error read_failure(const Checkpoint& checkpoint, const std::string& subject, int error) {
  std::vector<const Source*> sources;
  for (const Part& part : checkpoint.parts()) sources.push_back(part.source.get());
  return failure_of(sources, checkpoint.origins().front(), subject, error);
}

}  // namespace stfs
