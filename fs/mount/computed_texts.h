// A pool of texts that take long to compute, such as statistics and digests. Threads compute the
// texts, and the most recent ones are kept. If all askers of a text have left, its computation
// stops.
//
// The states of a text:
//
//   (none) ──request──► queued ──a thread is free──► running ──► kept ──over the bounds──► (none)
//      ▲                   │ leave                      │ leave, an error
//      └───────────────────┴────────────────────────────┘
//
//   transition   made by
//   request      a reader that needs the text; if the text is kept, the reader gets it at once
//   leave        the last asker; a running computation is asked to stop
//   running      a thread of the pool, which calls back all askers when it has the text or an errno
//
// Thread safety: all members except the destructor may be called from any thread.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace stfs {

class ComputedTexts {
 public:
  // The limits for kept texts, in number and in bytes. Beyond them the least recently used text
  // that no reader holds is dropped. The newest text always stays.
  static constexpr std::size_t kMaxTexts = 16'384;
  static constexpr std::size_t kMaxBytes = std::size_t{64} << 20;

  using Key = std::uint64_t;    // the inode number of the text's file
  using Asker = std::uint64_t;  // a ticket (pending_reads.h)

  // Fills `text` and returns 0, or returns an errno; EINTR soon after `stop` is set. Runs on a
  // thread of the pool.
  using Work = std::function<int(Key key, const std::atomic<bool>& stop, std::string& text)>;

  // Receives 0 and the text, or an errno. Must not throw.
  using Ready = std::function<void(int error, const std::string& text)>;

  // Returns true if computing the text of a key may have to wait for the network. Called by
  // request().
  using MayWait = std::function<bool(Key key)>;

  // Starts `threads` threads, in which all signals are blocked. Work that may wait gets separate
  // threads, at most kMaxWaiting, which are started when they are needed, so that it never delays
  // the other work.
  ComputedTexts(unsigned threads, Work work, MayWait may_wait = nullptr);
  static constexpr std::size_t kMaxWaiting = 32;
  ComputedTexts(const ComputedTexts&) = delete;
  ComputedTexts& operator=(const ComputedTexts&) = delete;
  ~ComputedTexts() { stop(); }

  // Ends the threads. Texts that are not complete are not computed any more, and no asker is called
  // back any more.
  void stop();

  // Calls `ready` once, unless the asker leaves or stop() is called first: on this thread if the
  // text is kept, otherwise on a thread of the pool. Throws std::bad_alloc without having called
  // it.
  void request(Asker asker, Key key, Ready ready);
  // The asker no longer needs its text. Does nothing if it has been called back.
  void leave(Asker asker);

  // Returns the size in bytes of the text of a key, or 0 if the text is not kept.
  std::size_t size(Key key) const;

  // Keeps the text of a key, once it is computed, until let_go() was called as often as hold(). A
  // reader that has begun thus reads one text to its end, even if many others are computed in
  // between. let_go() of a key that is not held does nothing.
  void hold(Key key);
  void let_go(Key key);

 private:
  struct Job {
    std::map<Asker, Ready> askers;
    std::atomic<bool> stop = false;
  };
  struct Text {
    std::shared_ptr<const std::string> text;  // shared with a request's answer
    std::list<Key>::iterator age;
  };
  using Queued = std::pair<Key, std::shared_ptr<Job>>;

  void compute(std::deque<Queued>& queue);
  bool has_waiting_thread();  // returns true if there is one; starts one if none is idle
  // The key must not have a text.
  void keep(Key key, const std::shared_ptr<const std::string>& text);
  void drop_surplus();  // drops the texts over the limits that no reader holds

  Work work_;
  MayWait may_wait_;
  mutable std::mutex mutex_;
  std::condition_variable wake_;
  bool stopping_ = false;
  // Jobs that are queued or running. Shared with the thread that runs the job. A job that all
  // askers have left is not in the map.
  std::map<Key, std::shared_ptr<Job>> jobs_;
  std::deque<Queued> queue_;
  std::deque<Queued> waiting_queue_;  // for work that may wait
  std::size_t waiting_threads_ = 0;   // number of threads for waiting_queue_
  std::size_t idle_waiting_ = 0;      // number of idle ones among them
  std::map<Key, Text> texts_;
  std::list<Key> by_age_;  // the keys of texts_, the least recently used first
  std::size_t bytes_ = 0;  // bytes of texts_
  std::map<Key, std::size_t> held_;
  std::vector<std::thread> threads_;
};

}  // namespace stfs
