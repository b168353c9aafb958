// Tests which source of a variable wins, how unknown names are reported, and errors of the
// configuration file.
#include "base/config_store.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <thread>

#include "base/config.h"
#include "temporary_directory.h"

namespace fsccl {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

std::string text_of(const Status& status) { return status.ok() ? "ok" : status.text(); }

const ConfigStore::Entry& entry(const ConfigStore& store, std::string_view name) {
  for (size_t i = 0; i < config_specs().size(); ++i) {
    if (name == config_specs()[i].name) return store.entries()[i];
  }
  throw std::out_of_range(std::string(name));
}

TEST(ConfigStore, Defaults) {
  const ConfigStore store({});
  ASSERT_TRUE(store.status().ok());
  const Config& config = *store.snapshot();
  EXPECT_EQ(config.timeout_ms, 600000);
  EXPECT_EQ(config.log_level, LogLevel::kWarn);
  EXPECT_EQ(config.log_file, "");
  EXPECT_FALSE(config.insecure);
  EXPECT_EQ(config.slot_bytes, kConfigAuto);
  EXPECT_EQ(config.eager_bytes, kConfigAuto);
  EXPECT_EQ(config.spin_us, kConfigAuto);
  EXPECT_EQ(config.single_copy, SingleCopy::kAuto);
  EXPECT_STREQ(entry(store, "FSCCL_TIMEOUT_MS").source, "default");
}

TEST(ConfigStore, AuthorityRises) {
  const TemporaryDirectory directory;
  const std::string file =
      directory.write("conf", "FSCCL_TIMEOUT_MS=10\nFSCCL_SPIN_US=11\nFSCCL_SLOT_BYTES=8K\n");
  ConfigStore store(
      {{"FSCCL_CONFIG_FILE", file}, {"FSCCL_SPIN_US", "21"}, {"FSCCL_SLOT_BYTES", "16K"}});
  ASSERT_TRUE(store.set("FSCCL_SLOT_BYTES", "32K").ok());
  ASSERT_TRUE(store.status().ok()) << store.status().text();
  EXPECT_EQ(store.snapshot()->eager_bytes, kConfigAuto);
  EXPECT_EQ(store.snapshot()->timeout_ms, 10);
  EXPECT_EQ(store.snapshot()->spin_us, 21);
  EXPECT_EQ(store.snapshot()->slot_bytes, 32 << 10);
  EXPECT_STREQ(entry(store, "FSCCL_EAGER_BYTES").source, "default");
  EXPECT_STREQ(entry(store, "FSCCL_TIMEOUT_MS").source, "file");
  EXPECT_STREQ(entry(store, "FSCCL_SPIN_US").source, "environment");
  EXPECT_STREQ(entry(store, "FSCCL_SLOT_BYTES").source, "api");
  EXPECT_EQ(store.get("FSCCL_SLOT_BYTES").value(), "32K");
}

TEST(ConfigStore, FileNamedByTheApi) {
  const TemporaryDirectory directory;
  const std::string first = directory.write("first", "FSCCL_TIMEOUT_MS=10\n");
  const std::string second = directory.write("second", "FSCCL_SPIN_US=11\n");
  ConfigStore store({{"FSCCL_CONFIG_FILE", first}});
  ASSERT_TRUE(store.set("FSCCL_CONFIG_FILE", second).ok());
  EXPECT_EQ(store.snapshot()->timeout_ms, 600000);
  EXPECT_EQ(store.snapshot()->spin_us, 11);
  EXPECT_FALSE(store.set("FSCCL_CONFIG_FILE", directory.path("missing")).ok());
  EXPECT_TRUE(store.status().ok());
  EXPECT_EQ(store.snapshot()->spin_us, 11);
}

TEST(ConfigStore, BadValueInTheEnvironment) {
  const ConfigStore store({{"FSCCL_LOG_LEVEL", "loud"}, {"FSCCL_SPIN_US", "5"}});
  EXPECT_EQ(store.status().code(), FSCCL_ERR_CONFIG);
  EXPECT_THAT(store.status().text(),
              AllOf(HasSubstr("FSCCL_LOG_LEVEL"), HasSubstr("\"loud\""), HasSubstr("environment"),
                    HasSubstr("error, warn, info, debug, trace")));
  EXPECT_EQ(store.snapshot()->log_level, LogLevel::kWarn);
  EXPECT_EQ(store.snapshot()->spin_us, 5);
}

TEST(ConfigStore, SetIsAllOrNothing) {
  ConfigStore store({});
  const ConfigRef before = store.snapshot();
  EXPECT_EQ(store.set("FSCCL_SPIN_US", "soon").code(), FSCCL_ERR_CONFIG);
  EXPECT_EQ(store.snapshot()->spin_us, kConfigAuto);
  EXPECT_THAT(text_of(store.set("FSCCL_TIMEOUT", "5")),
              HasSubstr("did you mean FSCCL_TIMEOUT_MS?"));
  EXPECT_EQ(store.get("FSCCL_TIMEOUT").status().code(), FSCCL_ERR_CONFIG);
  ASSERT_TRUE(store.set("FSCCL_SPIN_US", "5").ok());
  ASSERT_TRUE(store.set("FSCCL_SPIN_US", "6").ok());
  EXPECT_EQ(store.snapshot()->spin_us, 6);
  EXPECT_EQ(before->spin_us, kConfigAuto) << "a snapshot never changes";
}

TEST(ConfigStore, UnknownNamesWarn) {
  const TemporaryDirectory directory;
  const std::string file = directory.write("conf", "\nFSCCL_POOLLIMIT=1G\n");
  const ConfigStore store(
      {{"FSCCL_CONFIG_FILE", file}, {"FSCCL_TIMEOUT", "5"}, {"FSCCL_QQQQQQQQQQQQ", "5"}});
  EXPECT_TRUE(store.status().ok());
  EXPECT_THAT(
      store.warnings(),
      ElementsAre(AllOf(HasSubstr("FSCCL_POOLLIMIT"), HasSubstr("did you mean FSCCL_POOL_LIMIT?"),
                        HasSubstr("line 2")),
                  AllOf(HasSubstr("FSCCL_TIMEOUT"), HasSubstr("did you mean FSCCL_TIMEOUT_MS?"),
                        HasSubstr("environment")),
                  AllOf(HasSubstr("FSCCL_QQQQQQQQQQQQ"), HasSubstr("fsccl-info config"))));
  EXPECT_THAT(ConfigStore({}).warnings(), IsEmpty());
}

TEST(ConfigFile, TheMarkOfAnEditorIsNoPartOfIt) {
  const auto marked = parse_config_file("conf",
                                        "\xEF\xBB\xBF"
                                        "FSCCL_A=x\n");
  ASSERT_TRUE(marked.ok()) << marked.status().text();
  EXPECT_EQ(marked.value().at(0).name, "FSCCL_A");
  for (const char* mark : {"\xFF\xFE", "\xFE\xFF"}) {
    const auto wide = parse_config_file("conf", std::string(mark) + "F");
    EXPECT_NE(wide.status().text().find("UTF-16"), std::string::npos);
    EXPECT_NE(wide.status().text().find("conf"), std::string::npos);
  }
}

TEST(ConfigFile, Lines) {
  const auto settings =
      parse_config_file("conf", "# comment\n\n  FSCCL_A = x # y \r\nFSCCL_B=\n\tFSCCL_C=1=2");
  ASSERT_TRUE(settings.ok()) << settings.status().text();
  ASSERT_EQ(settings.value().size(), 3u);
  EXPECT_EQ(settings.value()[0].value, "x # y");
  EXPECT_EQ(settings.value()[0].line, 3);
  EXPECT_EQ(settings.value()[1].value, "");
  EXPECT_EQ(settings.value()[2].name, "FSCCL_C");
  EXPECT_EQ(settings.value()[2].value, "1=2");
  EXPECT_EQ(settings.value()[2].line, 5);
}

TEST(ConfigFile, MalformedLines) {
  for (const char* bad :
       {"FSCCL_A", "=x", "PATH=x", "fsccl_a=1", "export FSCCL_A=1", "FSCCL A=1", "\x01\x02"}) {
    const auto settings = parse_config_file("/etc/f.conf", std::string("FSCCL_B=1\n") + bad + "\n");
    ASSERT_FALSE(settings.ok()) << bad;
    EXPECT_EQ(settings.status().code(), FSCCL_ERR_CONFIG);
    EXPECT_THAT(settings.status().text(), AllOf(HasSubstr("/etc/f.conf"), HasSubstr("line 2")));
  }
  const auto twice = parse_config_file("conf", "FSCCL_A=1\n\nFSCCL_A=2\n");
  ASSERT_FALSE(twice.ok());
  EXPECT_THAT(twice.status().text(), AllOf(HasSubstr("line 3"), HasSubstr("line 1")));
}

TEST(ConfigFile, BadValueNamesFileAndLine) {
  const TemporaryDirectory directory;
  const std::string file = directory.write("conf", "# one\nFSCCL_TIMEOUT_MS=0\n");
  const ConfigStore store({{"FSCCL_CONFIG_FILE", file}});
  EXPECT_THAT(text_of(store.status()), AllOf(HasSubstr("FSCCL_TIMEOUT_MS"), HasSubstr("\"0\""),
                                             HasSubstr(file), HasSubstr("line 2")));
  const std::string other = directory.write("other", "FSCCL_CONFIG_FILE=x\n");
  EXPECT_THAT(text_of(ConfigStore({{"FSCCL_CONFIG_FILE", other}}).status()),
              HasSubstr("cannot name another"));
}

TEST(ConfigFile, Unreadable) {
  const TemporaryDirectory directory;
  EXPECT_THAT(text_of(read_config_file(directory.path("none")).status()),
              HasSubstr("No such file"));
  EXPECT_THAT(text_of(read_config_file(directory.path()).status()),
              HasSubstr("not a regular file"));
  ASSERT_EQ(mkfifo(directory.path("fifo").c_str(), 0600), 0);
  EXPECT_THAT(text_of(read_config_file(directory.path("fifo")).status()),
              HasSubstr("not a regular file"));
  const std::string huge = directory.write("huge", std::string((1 << 20) + 1, '#'));
  EXPECT_THAT(text_of(read_config_file(huge).status()), HasSubstr("larger"));
}

TEST(ConfigFile, OthersMustNotWriteIt) {
  const TemporaryDirectory directory;
  const std::string file = directory.write("conf", "FSCCL_TIMEOUT_MS=5\n");
  ASSERT_EQ(chmod(file.c_str(), 0666), 0);
  EXPECT_THAT(text_of(read_config_file(file).status()),
              AllOf(HasSubstr("writable by everybody"), HasSubstr("0666")));
  ASSERT_EQ(chmod(file.c_str(), 0644), 0);
  EXPECT_TRUE(read_config_file(file).ok());
  if (geteuid() != 0) GTEST_SKIP() << "only root can give a file away";
  ASSERT_EQ(chown(file.c_str(), 12345, 12345), 0);
  EXPECT_THAT(text_of(read_config_file(file).status()),
              AllOf(HasSubstr("belongs to user 12345"), HasSubstr("root")));
}

// The process-wide configuration is tested in children, because a process reads it once.
void exit_with(const Status& status) {
  if (!status.ok()) fmt::print(stderr, "{}\n", status.text());
  std::exit(status.ok() ? 0 : 1);
}

TEST(ProcessConfigDeathTest, ReadsTheEnvironmentOnce) {
  EXPECT_EXIT(
      {
        setenv("FSCCL_TIMEOUT_MS", "5", 1);
        const bool first = config()->timeout_ms == 5;
        setenv("FSCCL_TIMEOUT_MS", "6", 1);
        std::exit(first && config()->timeout_ms == 5 &&
                          config_get("FSCCL_TIMEOUT_MS").value() == "5"
                      ? 0
                      : 1);
      },
      testing::ExitedWithCode(0), "");
}

TEST(ProcessConfigDeathTest, BadValueIsAnErrorOfEveryCall) {
  EXPECT_EXIT((setenv("FSCCL_SPIN_US", "soon", 1), exit_with(config_status())),
              testing::ExitedWithCode(1), "FSCCL_SPIN_US is \"soon\"");
  EXPECT_EXIT((setenv("FSCCL_SPIN_US", "soon", 1), exit_with(config_dump([](const auto&) {}))),
              testing::ExitedWithCode(1), "FSCCL_SPIN_US");
  EXPECT_EXIT((setenv("FSCCL_LOG_FILE", "/nowhere/at/all", 1), exit_with(config_status())),
              testing::ExitedWithCode(1), "FSCCL_LOG_FILE");
}

TEST(ProcessConfigDeathTest, ALogThatCannotBeOpenedIsNotSet) {
  EXPECT_EXIT(
      {
        const bool refused = !config_set("FSCCL_LOG_FILE", "/nowhere/at/all").ok();
        std::exit(refused && config_status().ok() && config_get("FSCCL_LOG_FILE").value().empty() &&
                          config_set("FSCCL_SPIN_US", "1").ok()
                      ? 0
                      : 1);
      },
      testing::ExitedWithCode(0), "");
}

TEST(ProcessConfigDeathTest, UnknownNameWarnsOnce) {
  const TemporaryDirectory directory;
  EXPECT_EXIT(
      {
        setenv("FSCCL_TIMEOUT", "5", 1);
        setenv("FSCCL_TORCH_LIBRARY", "of the Python package", 1);
        setenv("FSCCL_JAX_LIBRARIES", "likewise", 1);
        setenv("FSCCL_LOG_FILE", directory.path("log").c_str(), 1);
        std::exit(config_status().ok() && config_status().ok() &&
                          config_set("FSCCL_SPIN_US", "1").ok()
                      ? 0
                      : 1);
      },
      testing::ExitedWithCode(0), "");
  EXPECT_EQ(directory.read("log"),
            "fsccl[-] warn: unknown variable \"FSCCL_TIMEOUT\"; did you mean FSCCL_TIMEOUT_MS? "
            "(from environment)\n");
}

TEST(ProcessConfigDeathTest, ThreadsMayReadWhileOneSets) {
  EXPECT_EXIT(
      {
        std::atomic<bool> stop{false};
        std::atomic<int> bad{0};
        std::thread reader([&] {
          while (!stop) bad += config()->spin_us < -1 || !config_get("FSCCL_SPIN_US").ok();
        });
        for (int i = 0; i < 200; ++i) bad += !config_set("FSCCL_SPIN_US", std::to_string(i)).ok();
        stop = true;
        reader.join();
        std::exit(bad == 0 && config()->spin_us == 199 ? 0 : 1);
      },
      testing::ExitedWithCode(0), "");
}

}  // namespace
}  // namespace fsccl
