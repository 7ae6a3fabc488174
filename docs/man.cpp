#include "docs/documents.h"
#include <algorithm>
#include <cctype>
#include <string_view>
#include <utility>
#include <vector>

namespace stfs::documents {
namespace {

std::string joined(const std::vector<std::string_view>& parts, std::string_view between) {
  std::string out;
  for (const std::string_view part : parts) {
    if (!out.empty()) out += between;
    out += part;
  }
  return out;
}

std::string lower(std::string_view text) {
  std::string out(text);
  std::ranges::transform(out, out.begin(),
                         [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return out;
}

// An argument in mdoc(7): "N" gives "Ar n", "GLOB..." "Ar glob ...", "A [B...]" "Ar a Op Ar b ...".
std::string name_of(std::string_view argument) {
  std::string out;
  for (std::string_view word : parts_of(argument, ' ')) {
    out += out.empty() ? "" : " ";
    if (word.starts_with('[') && word.ends_with(']')) {
      out += "Op ";
      word = word.substr(1, word.size() - 2);
    }
    const bool repeats = word.ends_with("...");
    if (repeats) word.remove_suffix(3);
    out += "Ar " + lower(word) + (repeats ? " ..." : "");
  }
  return out;
}

std::string value_of(const OptionRow& row) {
  return row.value == Value::kChoice ? "Cm " + joined(parts_of(row.argument, '|'), " | ")
                                     : name_of(row.argument);
}

std::string flag_macro(std::string_view flag) {
  return flag.starts_with('-') ? "Fl " + std::string(flag.substr(1)) : "Cm " + std::string(flag);
}

// The `man` text of a row in mdoc(7), each sentence on a new line.
std::string sentences(std::string_view text) {
  std::string out;
  bool is_literal = false;
  for (std::size_t i = 0; i < text.size(); ++i) {
    switch (const char c = text[i]) {
      case '`':
        is_literal = !is_literal;
        out += is_literal ? "\\fB" : "\\fP";
        break;
      case '<': out += "\\fI"; break;
      case '>': out += "\\fP"; break;
      case '\\': out += "\\e"; break;
      case '-': out += is_literal ? "\\-" : "-"; break;
      default: out += c == ' ' && !is_literal && text[i - 1] == '.' ? '\n' : c;
    }
  }
  return out + "\n";
}

// The lines of a synopsis after the program and the verb. The options of verbs have a list of their
// own: here stand those that must be given.
std::string synopsis_of(const CommandRow& command, const VerbRow& verb) {
  std::string options, operands;
  if (command.has_verbs) options = ".Op Ar options\n";
  for (const OptionRow& row : command.options) {
    const auto required = is_required(row, verb);
    if (!required) continue;
    if (command.has_verbs && !is_operand(row) && !*required) continue;
    std::string line = row.flags.starts_with('-')  ? flag_macro(parts_of(row.flags, ',').front())
                       : row.argument == row.flags ? value_of(row)
                                                   : name_of(row.flags);
    if (!row.argument.empty() && row.argument != row.flags) line += " " + value_of(row);
    (is_operand(row) ? operands : options) += (*required ? "." : ".Op ") + line + "\n";
  }
  return options + operands;
}

// Verbs with equal lines share an entry.
std::string synopsis(const CommandRow& command) {
  std::vector<std::pair<std::string, std::string>> entries;  // verbs, their lines
  for (const VerbRow& verb : command.verbs) {
    if (verb.help.empty()) continue;
    const std::string lines = synopsis_of(command, verb);
    const auto same =
        std::ranges::find(entries, lines, [](const auto& entry) { return entry.second; });
    if (same != entries.end()) {
      same->first += " | " + std::string(verb.name);
    } else {
      entries.emplace_back(verb.name, lines);
    }
  }
  std::string out;
  for (const auto& [verbs, lines] : entries) {
    out += ".Nm\n" + (command.has_verbs ? ".Cm " + verbs + "\n" : "") + lines;
  }
  return out + ".Nm\n.Fl h | V\n";
}

std::string list_of(std::span<const OptionRow> rows) {
  std::string out = ".Bl -tag -width Ds\n";
  for (const OptionRow& row : rows) {
    std::string item;
    for (const std::string_view flag : parts_of(row.flags, ',')) {
      item += (item.empty() ? "" : " , ") + flag_macro(flag);
    }
    if (!row.argument.empty()) {
      item += (row.flags.starts_with('-') ? " " : " Ns = Ns ") + value_of(row);
    }
    out += ".It " + item + "\n" + sentences(row.man);
  }
  return out + ".El\n";
}

void replace(std::string& page, std::string_view mark, const std::string& text) {
  const std::size_t begin = page.find(mark);
  if (begin != std::string::npos) page.replace(begin, mark.size(), text);
}

}  // namespace

std::string man_page(const CommandRow& command, std::string page) {
  replace(page, "@VERSION@", STFS_VERSION);
  replace(page, "@SYNOPSIS@\n", synopsis(command));
  replace(page, "@OPTIONS@\n", list_of(options_of(command)));
  replace(page, "@MOUNT_OPTIONS@\n", list_of(command.list));
  return page;
}

}  // namespace stfs::documents
