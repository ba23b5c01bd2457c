/* Process 1 of a pod sandbox, and of the node: waits, reaps orphans, ends when asked to. */
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

static void end(int sig) { (void)sig; _exit(0); }
static void reap(int sig) {
  (void)sig;
  while (waitpid(-1, NULL, WNOHANG) > 0) {}
}

int main(void) {
  signal(SIGINT, end);
  signal(SIGTERM, end);
  signal(SIGCHLD, reap);
  for (;;) pause();
}
