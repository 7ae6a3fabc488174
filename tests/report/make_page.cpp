// make_page model|large|compared|hostile|run|two|empty: writes the page of a report to standard
// output.
#include "core/report/page.h"
#include "core/report/run_page.h"
#include "tests/report/reports.h"

#include <cstdio>
#include <iostream>
#include <string>

int main(int argc, char** argv) {
  using namespace stfs::test;
  const std::string which = argc == 2 ? argv[1] : "";
  if (which == "model") {
    std::cout << stfs::report_page(model_report());
  } else if (which == "large") {
    std::cout << stfs::report_page(large_report(100000));
  } else if (which == "compared") {
    std::cout << stfs::report_page(compared_report());
  } else if (which == "hostile") {
    std::cout << stfs::report_page(hostile_report());
  } else if (which == "run") {
    std::cout << stfs::run_page(example_run());
  } else if (which == "two") {
    std::cout << stfs::report_page(small_report());
  } else if (which == "empty") {
    std::cout << stfs::report_page(empty_report());
  } else {
    std::cerr << "usage: make_page model|large|compared|hostile|run|two|empty\n";
    return 2;
  }
  return std::cout.flush() ? 0 : 1;
}
