// fsccl/publish.h: publishers and subscribers.
#include "fsccl/publish.h"

#include <algorithm>

#include "api/objects.h"
#include "base/config.h"
#include "comm/together.h"
#include "fsccl/codec.h"
#include "publish/host_memory.h"
#include "publish/publisher.h"
#include "publish/subscriber.h"

using namespace fsccl;

namespace {

struct PublisherObject {
  std::shared_ptr<publish::Publisher> publisher;
};
using PublisherTable = HandleTable<PublisherObject, HandleKind::publisher, 4096>;
using SubscriberTable = HandleTable<publish::Subscriber, HandleKind::subscriber, 4096>;

constinit PublisherTable publishers;
constinit SubscriberTable subscribers;

// Returns the timeout in ms, at most 115 days, because in nanoseconds it has to fit into 64 bits.
int64_t timeout_of(int64_t given_ms) {
  return std::min<int64_t>(given_ms ? given_ms : config()->timeout_ms, 10'000'000'000);
}

Status check_param(const fsccl_param_t& param, size_t index) {
  if (param.dims < 0 || param.dims > FSCCL_MAX_DIMS)
    return fail(FSCCL_ERR_INVALID_ARGUMENT, "parameter {}: dims is {}, it is 0 .. {}", index,
                param.dims, FSCCL_MAX_DIMS);
  if (!dtype_valid(param.dtype))
    return fail(FSCCL_ERR_INVALID_ARGUMENT,
                "parameter {}: dtype is {}, which is not a "
                "fsccl_dtype_t",
                index, static_cast<int>(param.dtype));
  return publish::check_host_memory(param.shard, index, param.name ? param.name : "");
}

ParamShape shape_of(const fsccl_param_t& param) {
  return {{param.shape, param.shape + param.dims},
          param.tied_to,
          param.block_rows,
          param.block_columns};
}

Result<Elements<fsccl_param_t>> params_of(const fsccl_param_t* params, size_t count, size_t size) {
  if (!params || count == 0 || count > publish::kMostParams)
    return fail(FSCCL_ERR_INVALID_ARGUMENT, "1 .. {} parameters at params, not {} at {}",
                publish::kMostParams, count, static_cast<const void*>(params));
  return Elements<fsccl_param_t>::make(params, size, kParamSize, FSCCL_PARAM_INIT, "param_size");
}

// Types other than floats, and 16-bit floats, are published unchanged.
fsccl_dtype_t sent_as(fsccl_dtype_t stored, fsccl_dtype_t wire) {
  const bool converted = stored == FSCCL_FLOAT32 || stored == FSCCL_FLOAT64;
  return converted && wire != FSCCL_PUBLISH_EXACT ? wire : stored;
}

Status read_units(const fsccl_publish_config_t& config, publish::Catalog* catalog) {
  if (!config.unit_params) {
    catalog->unit_params = {static_cast<uint32_t>(config.count)};
    return success();
  }
  uint64_t sum = 0;
  if (config.units == 0 || config.units > config.count)
    return fail(FSCCL_ERR_INVALID_ARGUMENT, "units is {}, with {} parameters it is 1 .. {}",
                config.units, config.count, config.count);
  for (size_t i = 0; i < config.units; i++) {
    const size_t count = config.unit_params[i];
    if (count > config.count)
      return fail(FSCCL_ERR_INVALID_ARGUMENT, "unit {} has {} of {} parameters", i, count,
                  config.count);
    catalog->unit_params.push_back(static_cast<uint32_t>(count));
    sum += count;
  }
  if (sum == config.count) return success();
  return fail(FSCCL_ERR_INVALID_ARGUMENT, "the units have {} parameters together, count is {}", sum,
              config.count);
}

Status check_limits(const fsccl_publish_config_t& config) {
  if (config.layout < FSCCL_LAYOUT_FLAT || config.layout > FSCCL_LAYOUT_RAGGED)
    return fail(FSCCL_ERR_INVALID_ARGUMENT, "layout is {}, which is not a fsccl_layout_t",
                static_cast<int>(config.layout));
  if (config.wire_dtype != FSCCL_FLOAT16 && config.wire_dtype != FSCCL_BFLOAT16 &&
      config.wire_dtype != FSCCL_FLOAT32 && config.wire_dtype != FSCCL_PUBLISH_EXACT)
    return fail(FSCCL_ERR_INVALID_ARGUMENT,
                "wire_dtype is {}: it is FSCCL_BFLOAT16, FSCCL_FLOAT16, FSCCL_FLOAT32 or "
                "FSCCL_PUBLISH_EXACT",
                static_cast<int>(config.wire_dtype));
  if (config.flags & ~FSCCL_CODEC_NIBBLES_ONLY)
    return fail(FSCCL_ERR_INVALID_ARGUMENT, "flags are {:#x}: FSCCL_CODEC_NIBBLES_ONLY or 0",
                config.flags);
  if (config.port < 0 || config.port > 65535)
    return fail(FSCCL_ERR_INVALID_ARGUMENT, "port is {}, it is 0 .. 65535", config.port);
  if (config.max_subscribers < 1 || config.max_subscribers > 65536)
    return fail(FSCCL_ERR_INVALID_ARGUMENT, "max_subscribers is {}, it is 1 .. 65536",
                config.max_subscribers);
  if (config.timeout_ms < 0 || config.linger_ms < 0)
    return fail(FSCCL_ERR_INVALID_ARGUMENT, "timeout_ms is {} and linger_ms {}: none is negative",
                config.timeout_ms, config.linger_ms);
  return success();
}

Result<publish::PublishRequest> read_request(const fsccl_publish_config_t* given) {
  if (!given) return fail(FSCCL_ERR_INVALID_ARGUMENT, "config is NULL: it says what is published");
  fsccl_publish_config_t config;
  fsccl_publish_config_t defaults = FSCCL_PUBLISH_CONFIG_INIT;
  defaults.param_size = 0;  // as a caller without the field has it
  FSCCL_TRY(read_config(given, defaults, &config));
  FSCCL_TRY(check_limits(config));
  FSCCL_ASSIGN(const auto params, params_of(config.params, config.count, config.param_size));
  publish::PublishRequest request;
  request.catalog.layout = config.layout;
  FSCCL_TRY(read_units(config, &request.catalog));
  for (size_t i = 0; i < config.count; i++) {
    const fsccl_param_t param = params[i];
    FSCCL_TRY(check_param(param, i));
    request.catalog.params.push_back(
        {param.name ? param.name : "", shape_of(param), sent_as(param.dtype, config.wire_dtype)});
    request.stored.push_back(param.dtype);
    request.shards.push_back(param.shard);
  }
  request.limit_bytes = config.limit_bytes;
  request.timeout_ms = timeout_of(config.timeout_ms);
  request.linger_ms = config.linger_ms;
  request.nibbles_only = config.flags & FSCCL_CODEC_NIBBLES_ONLY;
  request.port = static_cast<uint16_t>(config.port);
  request.max_subscribers = static_cast<size_t>(config.max_subscribers);
  request.name = config.name ? config.name : "weights";
  return request;
}

Result<publish::SubscribeRequest> read_request(const fsccl_subscribe_config_t* given) {
  if (!given) return fail(FSCCL_ERR_INVALID_ARGUMENT, "config is NULL: it says what is wanted");
  fsccl_subscribe_config_t config;
  fsccl_subscribe_config_t defaults = FSCCL_SUBSCRIBE_CONFIG_INIT;
  defaults.param_size = 0;
  FSCCL_TRY(read_config(given, defaults, &config));
  FSCCL_ASSIGN(const auto params, params_of(config.params, config.count, config.param_size));
  if (!config.ticket && !config.address)
    return fail(FSCCL_ERR_INVALID_ARGUMENT, "neither a ticket nor an address was given");
  if (config.timeout_ms < 0)
    return fail(FSCCL_ERR_INVALID_ARGUMENT, "timeout_ms is {}, it is 0 or more", config.timeout_ms);
  publish::SubscribeRequest request;
  request.ticket = config.ticket;
  request.address = config.address ? config.address : "";
  for (size_t i = 0; i < config.count; i++) {
    const fsccl_param_t param = params[i];
    FSCCL_TRY(check_param(param, i));
    request.params.push_back(
        {param.name ? param.name : "", shape_of(param), param.dtype, param.shard});
  }
  request.sharding = config.sharding;
  request.timeout_ms = timeout_of(config.timeout_ms);
  request.name = config.name ? config.name : "subscriber";
  return request;
}

}  // namespace

extern "C" {

fsccl_status_t fsccl_publisher_create(const fsccl_publish_config_t* config, fsccl_comm_t handle,
                                      fsccl_publisher_t* publisher) {
  return guarded("fsccl_publisher_create", [&]() -> Status {
    if (!publisher) return fail(FSCCL_ERR_INVALID_ARGUMENT, "publisher is NULL");
    FSCCL_ASSIGN(const Ref<Communicator> comm, comm_of(handle));
    const Together together(*comm);
    FSCCL_ASSIGN(std::shared_ptr<publish::Publisher> made,
                 publish::Publisher::create(*comm, read_request(config)));
    FSCCL_ASSIGN(const uint64_t bits,
                 publishers.add(std::make_unique<PublisherObject>(std::move(made))));
    *publisher = reinterpret_cast<fsccl_publisher_t>(bits);
    return success();
  });
}

fsccl_status_t fsccl_publish(fsccl_publisher_t handle, const void* const* shards, uint64_t label) {
  return guarded("fsccl_publish", [&]() -> Status {
    FSCCL_ASSIGN(const Ref<PublisherObject> object, object_of(publishers, handle));
    return object->publisher->publish(shards, label);
  });
}

fsccl_status_t fsccl_publisher_ticket(fsccl_publisher_t handle, fsccl_unique_id_t* ticket) {
  return guarded("fsccl_publisher_ticket", [&]() -> Status {
    if (!ticket) return fail(FSCCL_ERR_INVALID_ARGUMENT, "ticket is NULL");
    FSCCL_ASSIGN(const Ref<PublisherObject> object, object_of(publishers, handle));
    *ticket = object->publisher->ticket();
    return success();
  });
}

fsccl_status_t fsccl_publisher_report(fsccl_publisher_t handle, fsccl_publish_report_t* report) {
  return guarded("fsccl_publisher_report", [&]() -> Status {
    FSCCL_TRY(check_output(report, "report", "FSCCL_PUBLISH_REPORT_INIT"));
    FSCCL_ASSIGN(const Ref<PublisherObject> object, object_of(publishers, handle));
    fsccl_publish_report_t made = FSCCL_PUBLISH_REPORT_INIT;
    object->publisher->report(&made);
    fill_output(report, made);
    return success();
  });
}

fsccl_status_t fsccl_publisher_destroy(fsccl_publisher_t handle) {
  return guarded("fsccl_publisher_destroy", [&]() -> Status {
    {
      FSCCL_ASSIGN(const Ref<PublisherObject> object, object_of(publishers, handle));
      object->publisher->finish();
    }
    return publishers
        .end(bits_of(handle), Deadline::in_ms(config()->timeout_ms),
             [](PublisherObject&) { return success(); })
        .take_status();
  });
}

fsccl_status_t fsccl_subscribe(const fsccl_subscribe_config_t* config,
                               fsccl_subscriber_t* subscriber) {
  return guarded("fsccl_subscribe", [&]() -> Status {
    if (forked()) return forked_status();
    if (!subscriber) return fail(FSCCL_ERR_INVALID_ARGUMENT, "subscriber is NULL");
    FSCCL_TRY(config_status());
    watch_forks();
    FSCCL_ASSIGN(publish::SubscribeRequest request, read_request(config));
    FSCCL_ASSIGN(std::unique_ptr<publish::Subscriber> made,
                 publish::Subscriber::create(std::move(request)));
    FSCCL_ASSIGN(const uint64_t bits, subscribers.add(std::move(made)));
    *subscriber = reinterpret_cast<fsccl_subscriber_t>(bits);
    return success();
  });
}

fsccl_status_t fsccl_subscriber_update(fsccl_subscriber_t handle, int64_t timeout_ms,
                                       fsccl_publication_t* publication) {
  return guarded("fsccl_subscriber_update", [&]() -> Result<fsccl_status_t> {
    if (publication) FSCCL_TRY(check_output(publication, "publication", "FSCCL_PUBLICATION_INIT"));
    FSCCL_ASSIGN(const Ref<publish::Subscriber> subscriber, object_of(subscribers, handle));
    const int64_t ms = timeout_ms < 0 ? subscriber->timeout_ms() : timeout_ms;
    FSCCL_ASSIGN(const fsccl_publication_t got, subscriber->update(Deadline::in_ms(ms)));
    if (got.version == 0) return FSCCL_IN_PROGRESS;
    if (publication) fill_output(publication, got);
    return FSCCL_OK;
  });
}

fsccl_status_t fsccl_subscriber_report(fsccl_subscriber_t handle,
                                       fsccl_subscribe_report_t* report) {
  return guarded("fsccl_subscriber_report", [&]() -> Status {
    FSCCL_TRY(check_output(report, "report", "FSCCL_SUBSCRIBE_REPORT_INIT"));
    FSCCL_ASSIGN(const Ref<publish::Subscriber> subscriber, object_of(subscribers, handle));
    fsccl_subscribe_report_t made = FSCCL_SUBSCRIBE_REPORT_INIT;
    subscriber->report(&made);
    fill_output(report, made);
    return success();
  });
}

fsccl_status_t fsccl_subscriber_destroy(fsccl_subscriber_t handle) {
  return guarded("fsccl_subscriber_destroy", [&]() -> Status {
    int64_t timeout_ms = 0;
    {
      FSCCL_ASSIGN(const Ref<publish::Subscriber> subscriber, object_of(subscribers, handle));
      timeout_ms = subscriber->timeout_ms();
    }
    return subscribers
        .end(bits_of(handle), Deadline::in_ms(timeout_ms),
             [](publish::Subscriber&) { return success(); })
        .take_status();
  });
}

}  // extern "C"
