// A library with much static TLS.
static __thread char large[1400] __attribute__((tls_model("initial-exec")));

char *large_of_thread(void) { return large; }
