package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/gpreempt/gpreempt/cluster/metrics"
)

const (
	lookEvery   = time.Second
	staleAfter  = 10 * time.Second // a look waits half a second for members that do not answer
	mostScrapes = 4                // at once
	scrapeIn    = 10 * time.Second
	requestIn   = 5 * time.Second
	mostHeader  = 16 << 10
)

// serve serves the metrics until ctx is done. beside is run meanwhile.
func serve(ctx context.Context, address string, collector *metrics.Collector, log io.Writer, beside func(context.Context), more ...prometheus.Collector) error {
	listener, err := net.Listen("tcp", address)
	if err != nil {
		return fmt.Errorf("--listen %q: %w", address, err)
	}
	fmt.Fprintf(log, "metrics at http://%s/metrics\n", listener.Addr())
	h := &health{}
	server := &http.Server{Handler: handler(h, append(more, collector)...), ReadTimeout: requestIn, WriteTimeout: scrapeIn + requestIn, MaxHeaderBytes: mostHeader}
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	served := make(chan error, 1)
	go func() { served <- server.Serve(listener) }()
	go look(ctx, collector, h, log)
	go beside(ctx) // the first line of the log is where it serves
	select {
	case err = <-served:
		return fmt.Errorf("serve: %w", err)
	case <-ctx.Done():
	}
	end, cancel := context.WithTimeout(context.Background(), requestIn)
	defer cancel()
	if err = server.Shutdown(end); err != nil {
		return fmt.Errorf("end: %w", err)
	}
	return nil
}

// look looks at the segments again and again, and says when they cannot be read any more, and when they can.
func look(ctx context.Context, collector *metrics.Collector, h *health, log io.Writer) {
	ticker := time.NewTicker(lookEvery)
	defer ticker.Stop()
	for said := ""; ; {
		err := collector.Look()
		h.set(err)
		says := ""
		if err != nil {
			says = err.Error()
		}
		if says != said {
			fmt.Fprintln(log, "segments:", cmp.Or(says, "can be read again"))
			said = says
		}
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
	}
}

// health is how the last look ended, and when.
type health struct {
	mutex sync.Mutex
	err   error
	at    time.Time
}

func (h *health) set(err error) {
	h.mutex.Lock()
	defer h.mutex.Unlock()
	h.err, h.at = err, time.Now()
}

func (h *health) get() error {
	h.mutex.Lock()
	defer h.mutex.Unlock()
	switch {
	case h.at.IsZero():
		return errors.New("the segments have not been read yet")
	case h.err != nil:
		return h.err
	case time.Since(h.at) > staleAfter:
		return fmt.Errorf("the segments were read %v ago", time.Since(h.at).Round(time.Second))
	}
	return nil
}

func handler(h *health, collectors ...prometheus.Collector) http.Handler {
	registry := prometheus.NewRegistry()
	registry.MustRegister(collectors...)
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", promhttp.HandlerFor(registry, promhttp.HandlerOpts{MaxRequestsInFlight: mostScrapes, Timeout: scrapeIn}))
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) {
		if err := h.get(); err != nil {
			http.Error(w, err.Error(), http.StatusServiceUnavailable)
			return
		}
		fmt.Fprintln(w, "ok")
	})
	mux.HandleFunc("/", func(w http.ResponseWriter, _ *http.Request) {
		http.Error(w, "there are GET /metrics and GET /healthz", http.StatusNotFound)
	})
	return mux
}
