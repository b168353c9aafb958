// Implements the functions of UCX that transports/ucx uses over the simulated network. This file is
// linked in place of ucx_library.cpp, which finds the functions of UCX itself. It also replaces
// mirror/node_service.cpp and ucx/node_progress.cpp, which move the node on: here there is one
// thread, no thread sleeps, and messages that a rank has sent leave without its help.
// Channels, nodes, tokens and early messages are the real ones.
#include <ucp/api/ucp.h>

#include <cstring>
#include <functional>
#include <memory>
#include <vector>

#include "transports/sim/network.h"
#include "transports/ucx/node.h"

namespace fsccl {
namespace sim {
namespace {

struct Worker;
struct Endpoint {
  Worker* worker = nullptr;
  int to = 0;
  ucp_err_handler_t handler{};
};
struct Request;
struct Worker {
  int rank = 0;
  ucp_am_handler_param_t handler{};
  std::vector<std::unique_ptr<Endpoint>> endpoints;
  std::vector<Request*> requests;  // under way, the oldest first
};
struct Request {
  Worker& worker;
  std::function<void()> cancel;
};

Worker& as_worker(ucp_worker_h worker) { return *reinterpret_cast<Worker*>(worker); }
Endpoint& as_endpoint(ucp_ep_h endpoint) { return *reinterpret_cast<Endpoint*>(endpoint); }

ucs_status_t worker_create(ucp_context_h, const ucp_worker_params_t*, ucp_worker_h* worker) {
  auto made = std::make_unique<Worker>();
  made->rank = Network::current().next_rank();
  *worker = reinterpret_cast<ucp_worker_h>(made.release());
  return UCS_OK;
}
// Ends a worker as UCX does when endpoints are closed by force: requests under way are over, and
// their callbacks hear of that.
void worker_destroy(ucp_worker_h handle) {
  const std::unique_ptr<Worker> worker(&as_worker(handle));
  while (!worker->requests.empty()) {
    const std::function<void()> cancel = std::move(worker->requests.front()->cancel);
    worker->requests.erase(worker->requests.begin());
    cancel();  // frees the request
  }
}

Request* begin_request(Worker& worker,
                       const std::function<void(Request* request, ucs_status_t status)>& over) {
  auto* const request = new Request{worker, {}};
  request->cancel = [over, request] { over(request, UCS_ERR_CANCELED); };
  worker.requests.push_back(request);
  return request;
}
void free_request(void* handle) {
  const std::unique_ptr<Request> request(static_cast<Request*>(handle));
  std::erase(request->worker.requests, request.get());
}

ucs_status_t worker_get_address(ucp_worker_h worker, ucp_address_t** address, size_t* bytes) {
  *address = reinterpret_cast<ucp_address_t*>(&as_worker(worker).rank);
  *bytes = sizeof as_worker(worker).rank;
  return UCS_OK;
}

ucs_status_t worker_set_handler(ucp_worker_h worker, const ucp_am_handler_param_t* handler) {
  as_worker(worker).handler = *handler;
  return UCS_OK;
}

ucs_status_t ep_create(ucp_worker_h worker, const ucp_ep_params_t* params, ucp_ep_h* endpoint) {
  auto made = std::make_unique<Endpoint>();
  made->worker = &as_worker(worker);
  std::memcpy(&made->to, params->address, sizeof made->to);
  made->handler = params->err_handler;
  *endpoint = reinterpret_cast<ucp_ep_h>(made.get());
  as_worker(worker).endpoints.push_back(std::move(made));
  return UCS_OK;
}

ucs_status_ptr_t am_send(ucp_ep_h to, unsigned, const void* header, size_t header_bytes,
                         const void* data, size_t bytes, const ucp_request_param_t* param) {
  const Endpoint& endpoint = as_endpoint(to);
  const auto message = std::make_shared<Message>();
  const auto* const from = static_cast<const std::byte*>(header);
  message->header.assign(from, from + header_bytes);
  message->source = static_cast<const std::byte*>(data);
  message->size = bytes;
  message->eager = (param->flags & UCP_AM_SEND_FLAG_EAGER) != 0;
  const auto sent = [call = param->cb.send, user = param->user_data](
                        Request* request, ucs_status_t status) { call(request, status, user); };
  Request* const request = begin_request(*endpoint.worker, sent);
  message->done = [sent, request] { sent(request, UCS_OK); };
  if (!Network::current().send(endpoint.worker->rank, endpoint.to, message)) return request;
  free_request(request);
  return nullptr;
}

// The descriptor of bytes that can be fetched is a pointer to their message.
ucs_status_ptr_t am_fetch(ucp_worker_h worker, void* descriptor, void* place, size_t bytes,
                          const ucp_request_param_t* param) {
  const std::unique_ptr<MessagePtr> offered(static_cast<MessagePtr*>(descriptor));
  const auto fetched = [call = param->cb.recv_am, bytes, user = param->user_data](
                           Request* request, ucs_status_t status) {
    call(request, status, bytes, user);
  };
  Request* const request = begin_request(as_worker(worker), fetched);
  Network::current().fetch(as_worker(worker).rank, *offered, static_cast<std::byte*>(place),
                           [fetched, request] { fetched(request, UCS_OK); });
  return request;
}
void am_release(ucp_worker_h, void* descriptor) { delete static_cast<MessagePtr*>(descriptor); }

void take(const Worker& worker, const MessagePtr& message) {
  ucp_am_recv_param_t param{};
  const auto hand_over = [&](void* data) {
    return worker.handler.cb(worker.handler.arg, message->header.data(), message->header.size(),
                             data, message->size, &param);
  };
  if (!message->source) {
    hand_over(message->bytes.data());
    return;
  }
  param.recv_attr = UCP_AM_RECV_ATTR_FLAG_RNDV;
  auto descriptor = std::make_unique<MessagePtr>(message);
  if (hand_over(descriptor.get()) == UCS_INPROGRESS) (void)descriptor.release();
}

unsigned worker_progress(ucp_worker_h handle) {
  const Worker& worker = as_worker(handle);
  unsigned count = 0;
  while (const MessagePtr message = Network::current().next(worker.rank)) {
    count++;
    if (message->kind == Message::Kind::offered) {
      take(worker, message);
    } else if (message->kind == Message::Kind::broken) {
      for (const auto& endpoint : worker.endpoints)
        if (endpoint->to == message->peer)
          endpoint->handler.cb(endpoint->handler.arg, reinterpret_cast<ucp_ep_h>(endpoint.get()),
                               UCS_ERR_CONNECTION_RESET);
    } else {
      message->done();
    }
  }
  return count;
}

ucx::UcxLibrary simulated_library() {
  ucx::UcxLibrary made{};
  made.get_version = [](unsigned* major, unsigned* minor, unsigned* release) {
    *major = 1, *minor = 13, *release = 1;
  };
  made.status_string = [](ucs_status_t) { return "the simulated network says so"; };
  made.config_read = [](const char*, const char*, ucp_config_t**) { return UCS_OK; };
  made.config_modify = [](ucp_config_t*, const char*, const char*) { return UCS_OK; };
  made.config_release = [](ucp_config_t*) {};
  made.init_version = [](unsigned, unsigned, const ucp_params_t*, const ucp_config_t*,
                         ucp_context_h* context) {
    static char one;
    *context = reinterpret_cast<ucp_context_h>(&one);
    return UCS_OK;
  };
  // Memory cannot be registered here, so nothing is put or got. The functions are there all the
  // same, because a garbled message may look like one about a put or a get.
  made.mem_map = [](ucp_context_h, const ucp_mem_map_params_t*, ucp_mem_h*) {
    return UCS_ERR_UNSUPPORTED;
  };
  made.worker_create = worker_create;
  made.worker_destroy = worker_destroy;
  made.worker_get_address = worker_get_address;
  made.worker_release_address = [](ucp_worker_h, ucp_address_t*) {};
  made.worker_get_efd = [](ucp_worker_h, int* events) {
    *events = -1;
    return UCS_OK;
  };
  made.worker_progress = worker_progress;
  made.worker_set_am_recv_handler = worker_set_handler;
  made.ep_create = ep_create;
  made.ep_print_info = [](ucp_ep_h, FILE*) {};
  made.am_send_nbx = am_send;
  made.am_recv_data_nbx = am_fetch;
  made.am_data_release = am_release;
  made.request_free = free_request;
  return made;
}

}  // namespace
}  // namespace sim

namespace ucx {

const UcxLibrary* ucx_library(std::string*) {
  static const UcxLibrary library = sim::simulated_library();
  return &library;
}

bool Node::flushed() { return true; }
bool Node::arm() { return true; }
void Node::interrupt() {}

Node::~Node() {
  drop_early();
  if (worker_) ucx_.worker_destroy(worker_);
}

}  // namespace ucx

namespace mirror {

Status Node::start_service() { return success(); }
void Node::stop_service() {}
void Node::hear_out() { poll(-1); }  // no other thread ever polls here
void Node::need() {}
void Node::rest() {}
void Node::wake() {}

}  // namespace mirror
}  // namespace fsccl
