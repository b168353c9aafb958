#include "base/program.h"

#include <signal.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <system_error>

#include "base/fd.h"

namespace fsccl {

namespace {
constexpr WholeFile::How kOutput{.mode = 0666, .follow_links = true};
}

int run_program(const char* name, int argc, char** argv, int (*run)(int, char**)) {
  take_standard_numbers_for_good();
  signal(SIGXFSZ, SIG_IGN);
  const auto not_written = [name](const std::string& why) {
    fmt::print(stderr, "{}: the output cannot be written: {}\n", name, why);
    return 1;
  };
  try {
    const int status = run(argc, argv);
    errno = EIO;  // the reason, if an earlier write has failed, is not known any more
    return std::fflush(stdout) == 0 && !std::ferror(stdout) ? status
                                                            : not_written(why_not_written(errno));
  } catch (const std::system_error& error) {
    // fmt::print throws this exception, and so do others, as when there is no thread.
    if (std::ferror(stdout))
      (void)not_written(error.code().message() + advice_for(error.code().value()));
    else
      fmt::print(stderr, "{}: {}\n", name, error.what());
  } catch (const std::exception& error) {
    fmt::print(stderr, "{}: {}\n", name, error.what());
  }
  std::_Exit(1);  // not exit(): threads of the library may still run
}

Status OutputFile::open(const std::string& path) {
  path_ = path;
  FSCCL_ASSIGN(WholeFile file, WholeFile::create(path, kOutput));
  if (file.in_place()) file_.emplace(std::move(file));
  return success();
}

Status OutputFile::write(std::string_view text) {
  if (!file_) {
    FSCCL_ASSIGN(WholeFile file, WholeFile::create(path_, kOutput));
    file_.emplace(std::move(file));
  }
  file_->append(text);
  return file_->commit();
}

Status write_output(const std::string& path, std::string_view text) {
  OutputFile file;
  FSCCL_TRY(file.open(path));
  return file.write(text);
}

}  // namespace fsccl
