// What servers, and workers' sides of them, tell those who ask from outside (engine/inspector.h).
//
// Nothing here waits for a rule, or for the thread of a worker: only locks of moments are taken.

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "base/str_cat.h"
#include "ps/client.h"
#include "ps/server.h"
#include "transport/address.h"

namespace dmlcomm::ps {
namespace {

using engine::Inspection;
using engine::json_number;
using engine::json_text;

void add_to_list(std::string* list, const std::string& item) {
  if (!list->empty()) *list += ", ";
  *list += item;
}

std::string describe(const Session& session) {
  const uint32_t number = session.worker();
  return str_cat("{\"worker\": ", is_proxy(number) ? number - kFirstProxy : number,
                 ", \"is_proxy\": ", is_proxy(number), ", \"connected\": ", !session.ended(),
                 ", \"reason\": ", json_text(session.reason().message()),
                 ", \"queued\": ", session.num_queued(),
                 ", \"connection\": ", json_number(session.number()), "}");
}

std::string describe(const Model& model) {
  std::string clocks;
  for (uint32_t worker = 0; worker < model.clocks().num_known(); ++worker) {
    const uint64_t clock = model.clocks().get(worker);
    if (clock != kGone) add_to_list(&clocks, str_cat("\"", worker, "\": ", clock));
  }
  return str_cat("{\"name\": ", json_text(model.spec().name), ", \"sealed\": ", model.sealed(),
                 ", \"clock\": ", model.min_clock(), ", \"clocks\": {", clocks, "}}");
}

}  // namespace

Inspection Server::inspect() {
  std::map<uint32_t, std::shared_ptr<Model>> models;
  std::map<uint32_t, std::shared_ptr<Session>> sessions;
  {
    std::lock_guard lock(mutex_);
    models = models_;
    sessions = sessions_;
    if (closed_) return {.kind = Inspection::Kind::server, .json = ""};
  }
  std::string workers, clocks, lost;
  for (const auto& [number, session] : sessions) add_to_list(&workers, describe(*session));
  for (const auto& [number, model] : models) add_to_list(&clocks, describe(*model));
  for (uint32_t server : lost_servers()) add_to_list(&lost, str_cat(server));
  const bool is_proxy = options_.upstream != nullptr;
  const uint64_t parent = is_proxy ? options_.upstream->number() : 0;
  return {
      .kind = Inspection::Kind::server,
      .json = str_cat("{\"server\": ", options_.server, ", \"num_servers\": ", options_.num_servers,
                      ", \"num_workers\": ", options_.num_workers, ", \"is_proxy\": ", is_proxy,
                      ", \"parent\": ", parent == 0 ? "\"\"" : json_number(parent), ", \"host\": ",
                      json_text(transport::local_host_address().host_name), ", \"lost_servers\": [",
                      lost, "], \"workers\": [", workers, "], \"models\": [", clocks, "]}")};
}

Inspection Client::inspect() {
  std::vector<std::shared_ptr<ServerLink>> links;
  {
    std::lock_guard lock(mutex_);
    links = links_;
  }
  std::string connections;
  for (size_t server = 0; server < links.size(); ++server) {
    if (links[server] == nullptr) continue;
    add_to_list(&connections,
                str_cat("{\"server\": ", server, ", \"by_proxy\": ", links[server]->by_proxy(),
                        ", \"connected\": ", links[server]->works(),
                        ", \"connection\": ", json_number(links[server]->number()), "}"));
  }
  return {.kind = Inspection::Kind::worker,
          .json = str_cat("{\"worker\": ", options_.worker, ", \"num_servers\": ",
                          options_.num_servers, ", \"connections\": [", connections, "]}")};
}

}  // namespace dmlcomm::ps
