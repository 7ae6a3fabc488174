// A pool of texts that take long to compute (statistics, a digest): threads compute them, and the
// newest are kept. When all who asked for a text have left, its computation stops.
//
// The states of a text:
//
//   (none) ──request──► queued ──a thread is free──► running ──► kept ──over the bounds──► (none)
//      ▲                   │ leave                      │ leave, an error
//      └───────────────────┴────────────────────────────┘
//
//   transition   made by
//   request      who needs the text; of a kept one it is answered at once
//   leave        the last who asked for it; a running computation is told to stop
//   running      a thread of the pool, which answers all who asked when the text or an errno is
//   there
//
// Thread safety: all members except the destructor.
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

class Texts {
 public:
  // The pool keeps at most so many texts and bytes: beyond them the least recently used text that
  // nobody holds is dropped. The newest stays.
  static constexpr std::size_t kMaxTexts = 16'384;
  static constexpr std::size_t kMaxBytes = std::size_t{64} << 20;

  using Key = std::uint64_t;    // the inode number of the text's file
  using Asker = std::uint64_t;  // a ticket (waiting.h)

  // Fills the text and returns 0, or returns an errno; EINTR soon after `stop` is set. Runs on a
  // thread of the pool.
  using Work = std::function<int(Key key, const std::atomic<bool>& stop, std::string& text)>;

  // Gets 0 and the text, or an errno. Must not throw.
  using Ready = std::function<void(int error, const std::string& text)>;

  // Whether the work for a key may have to wait for a network. Called by request().
  using MayWait = std::function<bool(Key key)>;

  // Starts `threads` threads, in which all signals are blocked. Work that may wait gets threads of
  // its own, at most kMostWaiting, started when they are needed: it never holds up the work that
  // does not wait.
  Texts(unsigned threads, Work work, MayWait may_wait = nullptr);
  static constexpr std::size_t kMostWaiting = 32;
  Texts(const Texts&) = delete;
  Texts& operator=(const Texts&) = delete;
  ~Texts() { stop(); }

  // Ends the threads. What is not computed then never is, and nobody is answered any more.
  void stop();

  // Has `ready` called once, unless the asker leaves or stop() comes first: on this thread if the
  // text is kept, else on one of the pool. Throws std::bad_alloc without having called it.
  void request(Asker asker, Key key, Ready ready);
  // Does nothing if the asker has its answer.
  void leave(Asker asker);

  // Bytes of the text of a key; 0 while it is not kept.
  std::size_t size(Key key) const;

  // Keeps the text of a key, once it is there, until let_go() was called as often: a reader that
  // has begun sees one text to its end, however many others are computed. let_go() of a key that is
  // not held does nothing.
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
  bool has_waiting_thread();                                           // starts one if none is idle
  void keep(Key key, const std::shared_ptr<const std::string>& text);  // of a key without a text
  void drop_surplus();  // texts over the bounds that nobody holds

  Work work_;
  MayWait may_wait_;
  mutable std::mutex mutex_;
  std::condition_variable wake_;
  bool stopping_ = false;
  // Queued or running. Shared with the thread that runs it: a job that all left is in no map.
  std::map<Key, std::shared_ptr<Job>> jobs_;
  std::deque<Queued> queue_;
  std::deque<Queued> waiting_queue_;  // of work that may wait
  std::size_t waiting_threads_ = 0;   // for waiting_queue_
  std::size_t idle_waiting_ = 0;      // of them
  std::map<Key, Text> texts_;
  std::list<Key> by_age_;  // the keys of texts_, the least recently used first
  std::size_t bytes_ = 0;  // of texts_
  std::map<Key, std::size_t> held_;
  std::vector<std::thread> threads_;
};

}  // namespace stfs
