// stfs_documents SOURCE_DIR OUTPUT_DIR: writes the man pages of stfs, stfs-info and stfs-gpu.
#include "docs/documents.h"

#include "fs/fuse/options.h"
#include "tools/gpu/client/verbs.h"
#include "tools/info/verbs.h"

#include <cstdio>
#include <exception>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <stdexcept>
#include <string>

namespace stfs::documents {
namespace {

std::string read(const std::filesystem::path& path) {
  std::ifstream file;
  file.exceptions(std::ios::failbit | std::ios::badbit);
  file.open(path);
  return {std::istreambuf_iterator(file), {}};
}

void write(const std::filesystem::path& path, const std::string& text) {
  std::ofstream file;
  file.exceptions(std::ios::failbit | std::ios::badbit);
  file.open(path);
  file << text << std::flush;
}

void write_all(const std::filesystem::path& source, const std::filesystem::path& output) {
  for (const CommandRow* command : {&mount_command(), &info_command(), &gpu::gpu_command()}) {
    const std::string name(command->name);
    write(output / (name + ".1"), man_page(*command, read(source / "man" / (name + ".1.in"))));
  }
}

}  // namespace

}  // namespace stfs::documents

int main(int argc, char** argv) {
  try {
    if (argc != 3) throw std::invalid_argument("usage: stfs_documents SOURCE_DIR OUTPUT_DIR");
    stfs::documents::write_all(argv[1], argv[2]);
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "stfs_documents: %s\n", error.what());
    return 1;
  }
}
