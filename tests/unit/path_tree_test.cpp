// Compares the tree with a model: a map of paths and their parent directories.
#include "core/checkpoint/tree.h"
#include "tests/support/checkpoint_writer.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <set>
#include <string>
#include <string_view>
#include <vector>

namespace stfs::test {
namespace {

// A tree that owns its names, which are not numbered in alphabetical order.
class Tree {
 public:
  explicit Tree(std::vector<std::string> names) : names_(std::move(names)), tree_(make()) {}
  const PathTree& operator*() const { return tree_; }
  const PathTree* operator->() const { return &tree_; }
  const std::vector<std::string>& names() const { return names_; }

 private:
  PathTree make() {
    std::vector<std::uint32_t> by_name(names_.size());
    std::iota(by_name.begin(), by_name.end(), 0U);
    std::ranges::sort(by_name, {}, [&](std::uint32_t i) { return std::string_view(names_[i]); });
    return {[this](std::uint32_t i) { return std::string_view(names_[i]); }, by_name};
  }
  std::vector<std::string> names_;
  PathTree tree_;
};

// The tree of the tree view, which owns its names.
class DottedTree {
 public:
  explicit DottedTree(std::vector<std::string> names)
      : names_(std::move(names)),
        tree_(PathTree::with_dots([this](std::uint32_t i) { return std::string_view(names_[i]); },
                                  static_cast<std::uint32_t>(names_.size()))) {}
  const PathTree& operator*() const { return tree_; }
  const PathTree* operator->() const { return &tree_; }

  std::vector<std::string> paths() const {
    std::vector<std::string> out;
    for (std::uint32_t i = 0; i < names_.size(); ++i) out.emplace_back(tree_.path(i));
    return out;
  }

 private:
  std::vector<std::string> names_;
  PathTree tree_;
};

// The entries of a directory: maps a component to its tensor, or to nullopt for a directory.
using Listing = std::map<std::string, std::optional<std::uint32_t>>;

// Maps each directory path ("" or "a/b/") to its entries.
std::map<std::string, Listing> model_of(const PathTree& tree, std::size_t tensors) {
  std::map<std::string, Listing> model;
  model[""];
  for (std::uint32_t i = 0; i < tensors; ++i) {
    const std::string path(tree.path(i));
    std::size_t begin = 0;
    for (std::size_t slash; (slash = path.find('/', begin)) != std::string::npos;
         begin = slash + 1) {
      model[path.substr(0, begin)][path.substr(begin, slash - begin)] = std::nullopt;
    }
    model[path.substr(0, begin)][path.substr(begin)] = i;
  }
  return model;
}

std::vector<std::string> random_names(RandomBytes& random) {
  static const std::vector<std::string> kParts{
      "a", "b", "ab", "a.b", "a-", "a0", "%", "..", "", "x\x01", "\u00e9", ".", "a.", ".a", "b..a"};
  std::set<std::string> names;
  for (std::uint64_t i = random.next() % 40; i > 0; --i) {
    std::string name;
    for (std::uint64_t depth = random.next() % 4 + 1; depth > 0; --depth) {
      name += kParts[random.next() % kParts.size()];
      if (depth > 1) name += random.next() % 3 == 0 ? '.' : '/';
    }
    names.insert(name);
  }
  std::vector<std::string> out(names.begin(), names.end());
  for (std::size_t i = out.size(); i > 1; --i) std::swap(out[i - 1], out[random.next() % i]);
  return out;
}

struct Visited {
  std::uint64_t cursor;
  PathTree::Entry entry;
};

std::vector<Visited> list_all(const PathTree& tree, std::uint32_t directory,
                              std::uint64_t from = 0) {
  std::vector<Visited> out;
  std::uint64_t next = 0;
  while (const auto entry = tree.list(directory, from, next)) {
    out.push_back({from, *entry});
    if (next <= from) {
      ADD_FAILURE() << "the cursor does not advance";
      break;
    }
    from = next;
  }
  return out;
}

class RandomTrees : public ::testing::Test {
 protected:
  template <class Check>
  void each(const Check& check) {
    RandomBytes random(7);
    for (int round = 0; round < 300 && !HasFailure(); ++round) {
      const Tree tree(random_names(random));
      check(*tree, tree.names(), model_of(*tree, tree.names().size()));
      const DottedTree dotted(tree.names());
      check(*dotted, tree.names(), model_of(*dotted, tree.names().size()));
    }
  }
};

TEST_F(RandomTrees, ListEachEntryOnceInPathOrder) {
  each([](const PathTree& tree, const auto& names, const auto& model) {
    EXPECT_EQ(tree.directory_count(), model.size());
    std::size_t files = 0;
    for (std::uint32_t d = 0; d < tree.directory_count(); ++d) {
      const std::string prefix(tree.directory_path(d));
      ASSERT_TRUE(model.contains(prefix)) << prefix;
      Listing listing;
      std::string previous;
      for (const auto& [cursor, entry] : list_all(tree, d)) {
        const std::string component(entry.component);
        const std::string path = component + (entry.is_directory ? "/" : "");
        EXPECT_LT(previous, path);
        previous = path;
        listing[component] = entry.is_directory ? std::optional<std::uint32_t>{} : entry.number;
        files += entry.is_directory ? 0 : 1;
        if (entry.is_directory) {
          EXPECT_EQ(tree.directory_path(entry.number), prefix + component + "/");
        }
      }
      EXPECT_EQ(listing, model.at(prefix));
    }
    EXPECT_EQ(files, names.size());
  });
}

TEST_F(RandomTrees, LookUpOnlyListedEntries) {
  each([](const PathTree& tree, const auto&, const auto& model) {
    std::set<std::string> components{"", ".", "..", "a", "b", "nothing", "%", "a/b", "a/"};
    for (const auto& [prefix, listing] : model) {
      for (const auto& [component, tensor] : listing) components.insert(component);
    }
    for (std::uint32_t d = 0; d < tree.directory_count(); ++d) {
      const Listing& listing = model.at(std::string(tree.directory_path(d)));
      for (const std::string& component : components) {
        const auto entry = tree.lookup(d, component);
        const auto expected = listing.find(component);
        ASSERT_EQ(entry.has_value(), expected != listing.end()) << component;
        if (!entry) continue;
        EXPECT_EQ(entry->is_directory, !expected->second.has_value());
        EXPECT_EQ(entry->component, component);
        if (!entry->is_directory) {
          EXPECT_EQ(entry->number, *expected->second);
        } else {
          EXPECT_EQ(tree.parent(entry->number), d);
        }
      }
    }
    EXPECT_EQ(tree.parent(PathTree::kRoot), PathTree::kRoot);
  });
}

TEST_F(RandomTrees, FindTensorsButNotDirectoriesByPath) {
  each([](const PathTree& tree, const auto& names, const auto& model) {
    for (std::uint32_t i = 0; i < names.size(); ++i) EXPECT_EQ(tree.find(tree.path(i)), i);
    for (const auto& [prefix, listing] : model) {
      EXPECT_EQ(tree.find(prefix), std::nullopt);
      if (prefix.empty()) continue;
      EXPECT_EQ(tree.find(prefix.substr(0, prefix.size() - 1)), std::nullopt);
    }
    EXPECT_EQ(tree.find("nothing/there"), std::nullopt);
  });
}

TEST_F(RandomTrees, ResumeListingAtAnyCursor) {
  each([](const PathTree& tree, const auto&, const auto&) {
    for (std::uint32_t d = 0; d < tree.directory_count(); ++d) {
      const std::vector<Visited> all = list_all(tree, d);
      for (std::size_t i = 0; i < all.size(); ++i) {
        const std::vector<Visited> rest = list_all(tree, d, all[i].cursor);
        ASSERT_EQ(rest.size(), all.size() - i);
        for (std::size_t j = 0; j < rest.size(); ++j) {
          EXPECT_EQ(rest[j].entry.component, all[i + j].entry.component);
          EXPECT_EQ(rest[j].entry.number, all[i + j].entry.number);
        }
      }
    }
  });
}

TEST_F(RandomTrees, ListOnlyOwnEntriesAtInvalidCursor) {
  each([](const PathTree& tree, const auto& names, const auto&) {
    for (std::uint32_t d = 0; d < tree.directory_count(); ++d) {
      std::map<std::string, std::pair<bool, std::uint32_t>> own;
      for (const auto& [cursor, entry] : list_all(tree, d)) {
        own[std::string(entry.component)] = {entry.is_directory, entry.number};
      }
      for (std::uint64_t cursor = 0; cursor <= names.size() + 2; ++cursor) {
        for (const auto& [at, entry] : list_all(tree, d, cursor)) {
          const auto found = own.find(std::string(entry.component));
          ASSERT_NE(found, own.end());
          EXPECT_EQ(std::pair(entry.is_directory, entry.number), found->second)
              << "directory \"" << tree.directory_path(d) << "\", cursor " << cursor << ", entry "
              << entry.component;
        }
      }
      std::uint64_t next = 0;
      EXPECT_EQ(tree.list(d, ~std::uint64_t{0}, next).has_value(), false);
    }
  });
}

TEST(PathTree, SkipsSubdirectoryIfCursorIsInsideIt) {
  // Cursor 1 of the root is at `x/y/b`, where the directory x/y begins. x began earlier.
  const Tree tree({"x/a", "x/y/b", "z"});
  std::uint64_t next = 0;

  const auto entry = tree->list(PathTree::kRoot, 1, next);

  ASSERT_TRUE(entry);
  EXPECT_EQ(entry->component, "z");
  EXPECT_FALSE(entry->is_directory);
}

TEST(PathTree, SkipsLargeSubdirectoryWithoutRecursion) {
  std::vector<std::string> names;
  for (int i = 0; i < 300'000; ++i) names.push_back("x/" + std::to_string(i));
  names.push_back("z");
  const Tree tree(std::move(names));
  std::uint64_t next = 0;

  const auto entry = tree->list(PathTree::kRoot, 1, next);

  ASSERT_TRUE(entry);
  EXPECT_EQ(entry->component, "z");
}

// A time quadratic in the length of the name would be half a minute, which the test's timeout would
// report.
TEST(PathTree, BuildsTwoVeryDeepNamesInLinearTime) {
  std::string a;
  std::string b;
  for (int i = 0; i < 1'500'000; ++i) a += "a/";
  for (int i = 0; i < 750'000; ++i) b += "a/";
  for (int i = 0; i < 1'500'000; ++i) b += "b/";

  const Tree tree({a + "x", b + "x"});

  EXPECT_EQ(tree->directory_count(), 1U + 1'500'000U + 1'500'000U);
}

TEST(PathTree, ChecksCollisionsOfVeryDeepNameInLinearTime) {
  std::string deep;
  for (int i = 0; i < 1'500'000; ++i) deep += "a/";

  const Tree tree({"0", deep + std::string(300, 'y')});

  EXPECT_EQ(tree->directory_count(), 1U + 1'500'000U);
}

TEST(PathTree, HasOnlyEmptyRootWithoutTensors) {
  const Tree tree({});
  std::uint64_t next = 0;

  EXPECT_EQ(tree->directory_count(), 1U);
  EXPECT_EQ(tree->list(PathTree::kRoot, 0, next).has_value(), false);
  EXPECT_EQ(tree->lookup(PathTree::kRoot, "a").has_value(), false);
  EXPECT_EQ(tree->find(""), std::nullopt);
  EXPECT_EQ(tree->directory_path(PathTree::kRoot), "");
}

TEST(PathTree, SupportsTenThousandNestedDirectories) {
  std::string name;
  for (int i = 0; i < 10'000; ++i) name += "d/";
  const Tree tree({name + "file", name + "other"});

  std::uint32_t directory = PathTree::kRoot;
  std::size_t depth = 0;
  while (const auto entry = tree->lookup(directory, "d")) {
    directory = entry->number;
    ++depth;
  }

  EXPECT_EQ(depth, 10'000U);
  EXPECT_EQ(list_all(*tree, directory).size(), 2U);
  EXPECT_EQ(tree->find(name + "file"), 0U);
}

TEST(PathTree, NumbersDependOnlyOnNames) {
  const Tree one({"b/x", "a/y", "c"});
  const Tree other({"c", "a/y", "b/x"});

  for (std::uint32_t d = 0; d < one->directory_count(); ++d) {
    EXPECT_EQ(one->directory_path(d), other->directory_path(d));
  }
}

// Tests of the tree view.

using Paths = std::vector<std::string>;
Paths dotted(const std::vector<std::string>& names) { return DottedTree(names).paths(); }

TEST(DottedPaths, TurnDotsIntoDirectories) {
  EXPECT_EQ(dotted({"model.layers.0.q_proj.weight", "lm_head.weight", "plain", "a/b.c"}),
            (Paths{"model/layers/0/q_proj/weight", "lm_head/weight", "plain", "a/b/c"}));
}

TEST(DottedPaths, KeepDotAfterTensorName) {
  EXPECT_EQ(dotted({"a", "a.b"}), (Paths{"a", "a.b"}));
  EXPECT_EQ(dotted({"a.b", "a.b.c", "a.b.c.d"}), (Paths{"a/b", "a/b.c", "a/b.c.d"}));
  EXPECT_EQ(dotted({"a", "a.b.c"}), (Paths{"a", "a.b/c"}));
  EXPECT_EQ(dotted({"a", "a/b"}), (Paths{"a", "a%2Fb"}));
}

TEST(DottedPaths, EscapeDotIfPathsWouldCollide) {
  EXPECT_EQ(dotted({"a.b", "a/b"}), (Paths{"a%2Eb", "a/b"}));
  EXPECT_EQ(dotted({"a.b.c", "a/b.c", "a.b/c"}), (Paths{"a%2Eb%2Ec", "a/b%2Ec", "a%2Eb/c"}));
  EXPECT_EQ(dotted({"a.b.c", "a/b/c"}), (Paths{"a%2Eb%2Ec", "a/b/c"}));
}

TEST(DottedPaths, KeepNonSeparatingDot) {
  EXPECT_EQ(dotted({".a", "b.", "c..d", ".e.", "%"}), (Paths{".a", "b.", "c/.d", ".e.", "%25"}));
  EXPECT_EQ(dotted({"", ".", "..", "..."}), (Paths{"%", "%2E", "%2E%2E", "..."}));
}

// Checks the properties that hold for every set of names.
void expect_good_dotted_paths(const std::vector<std::string>& names) {
  const Paths paths = dotted(names);
  std::set<std::string> files(paths.begin(), paths.end());
  EXPECT_EQ(files.size(), names.size()) << "two tensors share a path";
  for (const std::string& path : paths) {
    std::size_t begin = 0;
    while (true) {
      const std::size_t slash = path.find('/', begin);
      const std::string component = path.substr(begin, slash - begin);
      EXPECT_NE(component, "") << path;
      EXPECT_NE(component, ".") << path;
      EXPECT_NE(component, "..") << path;
      EXPECT_LE(component.size(), kMaxComponent);
      if (slash == std::string::npos) break;
      EXPECT_FALSE(files.contains(path.substr(0, slash))) << path << ": a file is a directory";
      begin = slash + 1;
    }
  }
}

TEST(DottedPaths, SmallSetsAreDistinctAndValid) {
  const std::vector<std::string> names{"",      ".",     "/",     "a",     "a.",    "a/",    ".a",
                                       "/a",    "a.b",   "a/b",   "a..b",  "a//b",  "a./b",  "a/.b",
                                       "a%2Eb", "a%2Fb", "a.b.c", "a.b/c", "a/b.c", "a/b/c", "..",
                                       "a.b.",  "a/b/",  "a/..",  "a/./b"};
  for (std::size_t i = 0; i < names.size(); ++i) {
    for (std::size_t j = i + 1; j < names.size(); ++j) {
      for (std::size_t k = j; k < names.size() && !::testing::Test::HasFailure(); ++k) {
        const std::set<std::string> chosen{names[i], names[j], names[k]};
        expect_good_dotted_paths({chosen.begin(), chosen.end()});
      }
    }
  }
  expect_good_dotted_paths(names);
}

TEST(DottedPaths, AllShortNamesAreDistinctAndValid) {
  const std::string alphabet = "/.%a2E";
  std::vector<std::string> names{""};
  for (std::size_t begin = 0, length = 0; length < 5; ++length) {
    const std::size_t end = names.size();
    for (; begin < end; ++begin) {
      for (const char c : alphabet) names.push_back(names[begin] + c);
    }
  }
  expect_good_dotted_paths(names);
}

TEST(DottedPaths, LongNamesAreDistinctAndValid) {
  const std::string part(300, 'n');
  expect_good_dotted_paths({part, part + "." + part, part + "/" + part + ".x", part + ".y",
                            "a." + part, "a/" + part, std::string(100, '.'),
                            std::string(300, '.')});
}

TEST(DottedPaths, DoNotDependOnTensorOrder) {
  RandomBytes random(12);
  for (int round = 0; round < 100; ++round) {
    std::vector<std::string> names = random_names(random);
    Paths paths = dotted(names);
    std::ranges::reverse(names);
    std::ranges::reverse(paths);
    EXPECT_EQ(dotted(names), paths);
  }
}

}  // namespace
}  // namespace stfs::test
