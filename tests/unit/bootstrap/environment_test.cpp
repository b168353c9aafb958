// What launchers say, and the file with the secret.
#include "bootstrap/environment.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <map>

#include "bootstrap/credentials.h"
#include "bootstrap/member_info.h"

namespace fsccl {
namespace {

using ::testing::HasSubstr;
using Variables = std::map<std::string, std::string>;

Result<LaunchEnvironment> read(const Variables& variables) {
  return read_environment([&](const char* name) -> const char* {
    const auto found = variables.find(name);
    return found == variables.end() ? nullptr : found->second.c_str();
  });
}

const Variables kTorch = {{"RANK", "3"},
                          {"WORLD_SIZE", "8"},
                          {"LOCAL_RANK", "3"},
                          {"LOCAL_WORLD_SIZE", "8"},
                          {"MASTER_ADDR", "node7"},
                          {"MASTER_PORT", "29500"},
                          {"TORCHELASTIC_RUN_ID", "run"},
                          {"TORCHELASTIC_RESTART_COUNT", "0"}};
const Variables kMpi = {{"OMPI_COMM_WORLD_RANK", "1"},
                        {"OMPI_COMM_WORLD_SIZE", "4"},
                        {"OMPI_COMM_WORLD_LOCAL_SIZE", "4"},
                        {"PMIX_NAMESPACE", "prterun-x-1@1"}};

Variables with(Variables variables, const std::string& name, const std::string& value) {
  variables[name] = value;
  return variables;
}

TEST(Environment, Torchrun) {
  const Result<LaunchEnvironment> launch = read(kTorch);
  ASSERT_TRUE(launch.ok()) << launch.status().text();
  EXPECT_EQ(launch.value().rank, 3);
  EXPECT_EQ(launch.value().ranks, 8);
  EXPECT_TRUE(launch.value().one_host);
  EXPECT_EQ(launch.value().master_address, "node7");
  EXPECT_EQ(launch.value().master_port, 29500);
}

TEST(Environment, TheNameTellsJobsApart) {
  const std::string name = read(kTorch).value().job;
  EXPECT_EQ(read(with(kTorch, "RANK", "0")).value().job, name);
  for (const char* variable : {"MASTER_PORT", "TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT"})
    EXPECT_NE(read(with(kTorch, variable, "7")).value().job, name) << variable;
  EXPECT_NE(read(with(kTorch, "MASTER_ADDR", "node8")).value().job, name);
  EXPECT_NE(read(with(kMpi, "PMIX_NAMESPACE", "other")).value().job, read(kMpi).value().job);
}

TEST(Environment, SeveralHosts) {
  EXPECT_FALSE(read(with(kTorch, "LOCAL_WORLD_SIZE", "4")).value().one_host);
  EXPECT_FALSE(read(with(kMpi, "OMPI_COMM_WORLD_LOCAL_SIZE", "2")).value().one_host);
  // Without a count of local ranks the address decides.
  EXPECT_TRUE(read({{"RANK", "0"}, {"WORLD_SIZE", "2"}, {"MASTER_ADDR", "127.0.0.1"}, {"MASTER_PORT", "1"}}).value().one_host);
  EXPECT_FALSE(read({{"RANK", "0"}, {"WORLD_SIZE", "2"}, {"MASTER_ADDR", "10.0.0.1"}, {"MASTER_PORT", "1"}}).value().one_host);
}

TEST(Environment, OpenMpi) {
  const Result<LaunchEnvironment> launch = read(kMpi);
  ASSERT_TRUE(launch.ok()) << launch.status().text();
  EXPECT_EQ(launch.value().rank, 1);
  EXPECT_EQ(launch.value().ranks, 4);
  EXPECT_TRUE(launch.value().one_host);
  Variables old = kMpi;
  old.erase("PMIX_NAMESPACE");
  EXPECT_EQ(read(old).status().code(), FSCCL_ERR_CONFIG);
  EXPECT_TRUE(read(with(old, "OMPI_MCA_orte_hnp_uri", "1.0;tcp://h:1")).ok());
}

TEST(Environment, WhatIsWrongIsNamed) {
  const auto text_of = [](const Variables& variables) {
    const Result<LaunchEnvironment> launch = read(variables);
    EXPECT_EQ(launch.status().code(), FSCCL_ERR_CONFIG);
    return launch.ok() ? std::string() : launch.status().text();
  };
  EXPECT_THAT(text_of({}), HasSubstr("torchrun"));
  EXPECT_THAT(text_of({{"RANK", "0"}}), HasSubstr("WORLD_SIZE is not set"));
  EXPECT_THAT(text_of({{"WORLD_SIZE", "2"}}), HasSubstr("RANK is not set"));
  EXPECT_THAT(text_of({{"RANK", "0"}, {"WORLD_SIZE", "2"}}), HasSubstr("MASTER_ADDR"));
  EXPECT_THAT(text_of(with(kTorch, "RANK", "8")), HasSubstr("RANK=8: not a number from 0 to 7"));
  EXPECT_THAT(text_of(with(kTorch, "RANK", "-1")), HasSubstr("RANK=-1"));
  EXPECT_THAT(text_of(with(kTorch, "RANK", "3x")), HasSubstr("RANK=3x"));
  EXPECT_THAT(text_of(with(kTorch, "WORLD_SIZE", "99999999999")), HasSubstr("WORLD_SIZE=99999999999"));
  EXPECT_THAT(text_of(with(kTorch, "MASTER_PORT", "70000")), HasSubstr("MASTER_PORT=70000"));
  EXPECT_THAT(text_of(with(kTorch, "LOCAL_WORLD_SIZE", "9")), HasSubstr("LOCAL_WORLD_SIZE=9"));
}

TEST(Environment, SeveralHostsNeedASecretAPortAndTcp) {
  const LaunchEnvironment launch = read(with(with(kTorch, "LOCAL_WORLD_SIZE", "4"), "MASTER_ADDR", "127.0.0.1")).take();
  Config settings = *config();
  settings.job_secret_file.clear();
  settings.insecure = false;
  settings.bootstrap_tcp = true;
  const auto meet = [&] { return meet_from_environment(launch, settings, 0, Deadline::in_ms(100)); };
  const Status no_secret = meet().take_status();
  EXPECT_EQ(no_secret.code(), FSCCL_ERR_AUTH);
  EXPECT_THAT(no_secret.text(), HasSubstr("FSCCL_JOB_SECRET_FILE"));
  EXPECT_THAT(no_secret.text(), HasSubstr("FSCCL_INSECURE=1"));
  settings.insecure = true;
  const Result<MeetingPlace> place = meet();
  ASSERT_TRUE(place.ok()) << place.status().text();
  EXPECT_EQ(port_of(place.value().addresses.at(0)), 29501);
  settings.bootstrap_port = 4242;
  EXPECT_EQ(port_of(meet().value().addresses.at(0)), 4242);
  settings.bootstrap_tcp = false;
  EXPECT_EQ(meet().status().code(), FSCCL_ERR_CONFIG);
}

class SecretFile : public ::testing::Test {
 protected:
  void SetUp() override {
    char name[] = "/tmp/fsccl-secret-XXXXXX";
    ASSERT_NE(mkdtemp(name), nullptr);
    folder = name;
    path = folder + "/secret";
  }
  void TearDown() override { std::filesystem::remove_all(folder); }
  void write_file(const std::string& text, mode_t mode = 0600) {
    std::ofstream(path, std::ios::trunc) << text;
    ASSERT_EQ(chmod(path.c_str(), mode), 0);
  }
  std::string folder, path;
};

TEST_F(SecretFile, ItsContentDecides) {
  write_file("0123456789abcdef0123456789abcdef\n");
  const SecretKey one = read_secret_file(path).take();
  write_file("0123456789abcdef0123456789abcdef");  // without the newline of an editor
  const SecretKey same = read_secret_file(path).take();
  write_file("0123456789abcdef0123456789abcdeg");
  const SecretKey other = read_secret_file(path).take();
  EXPECT_EQ(std::memcmp(one.data(), same.data(), kKeyBytes), 0);
  EXPECT_NE(std::memcmp(one.data(), other.data(), kKeyBytes), 0);
}

TEST_F(SecretFile, WhatCannotBeTrustedIsRefused) {
  EXPECT_EQ(read_secret_file(path).status().code(), FSCCL_ERR_CONFIG);  // does not exist
  write_file("0123456789abcdef0123456789abcdef", 0640);
  EXPECT_THAT(read_secret_file(path).status().text(), HasSubstr("chmod 600"));
  write_file("short");
  EXPECT_THAT(read_secret_file(path).status().text(), HasSubstr("at least 16"));
  write_file(std::string(5000, 'x'));
  EXPECT_THAT(read_secret_file(path).status().text(), HasSubstr("longer than"));
  std::filesystem::remove(path);
  ASSERT_EQ(mkfifo(path.c_str(), 0600), 0);
  EXPECT_THAT(read_secret_file(path).status().text(), HasSubstr("not a regular file"));  // and it does not wait for a writer
}

TEST(MemberInfo, StartTimeSurvivesOddProgramNames) {
  std::string stat = "12 (a) b (c d) S";
  for (int field = 4; field < 22; ++field) stat += fmt::format(" {}", field);
  EXPECT_EQ(parse_start_time(stat + " 777 23"), 777u);
  EXPECT_EQ(parse_start_time(stat), 0u);
  EXPECT_EQ(parse_start_time("nothing"), 0u);
  EXPECT_GT(describe_process("").start_time, 0u);
}

TEST(MemberInfo, HostNumber) {
  EXPECT_EQ(host_number(""), host_number(""));
  EXPECT_EQ(host_number("a"), host_number("a"));
  EXPECT_NE(host_number("a"), host_number("b"));
  EXPECT_NE(host_number("a"), host_number(""));
}

}  // namespace
}  // namespace fsccl
