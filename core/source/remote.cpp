#include "core/source/remote.h"

#include <nlohmann/json.hpp>

namespace stfs {

std::string to_json(const RemoteVersion& version, bool with_secrets) {
  nlohmann::ordered_json json = {{"name", version.name},
                                 {"size", version.size},
                                 {"mtime", {version.mtime.tv_sec, version.mtime.tv_nsec}},
                                 {"token", version.token},
                                 {"etag", version.etag},
                                 {"last_modified", version.last_modified},
                                 {"version_id", version.version_id},
                                 {"sha256", version.sha256},
                                 {"is_weak", version.is_weak}};
  if (with_secrets) json["url"] = version.url;
  return json.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

std::optional<RemoteVersion> parse_remote_version(std::string_view json) {
  try {
    const auto object = nlohmann::json::parse(json);
    RemoteVersion version;
    object.at("name").get_to(version.name);
    version.url = object.value("url", "");
    object.at("size").get_to(version.size);
    object.at("mtime").at(0).get_to(version.mtime.tv_sec);
    object.at("mtime").at(1).get_to(version.mtime.tv_nsec);
    object.at("token").get_to(version.token);
    object.at("etag").get_to(version.etag);
    object.at("last_modified").get_to(version.last_modified);
    object.at("version_id").get_to(version.version_id);
    object.at("sha256").get_to(version.sha256);
    object.at("is_weak").get_to(version.is_weak);
    return version;
  } catch (const nlohmann::json::exception&) {
    return std::nullopt;
  }
}

}  // namespace stfs
