// Command gpreempt-nri gives the containers of pods the library, as a plugin of their container runtime (containerd, CRI-O).
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"github.com/spf13/cobra"

	"github.com/gpreempt/gpreempt/broker/join"
	"github.com/gpreempt/gpreempt/cluster/nri"
	"github.com/gpreempt/gpreempt/cluster/servicelog"
	"github.com/gpreempt/gpreempt/inject"
	"github.com/gpreempt/gpreempt/internal/cli"
	"github.com/gpreempt/gpreempt/preempt/segment"
)

// version is set by the Makefile.
var version string

type options struct {
	socket, config, library, sockets, pods, listen, level string
	exclude                                               []string
	budget                                                time.Duration
}

func rootCommand() *cobra.Command {
	var o options
	command := &cobra.Command{
		Use:   "gpreempt-nri",
		Short: "Give the containers of Kubernetes' pods the library, as a plugin of the container runtime",
		Long: `gpreempt-nri registers with containerd or CRI-O by the Node Resource Interface (NRI). A container with a GPU whose pod has the annotation
gpreempt.io/role (lc, be, or a level from 0 to 7) gets the library behind what its LD_PRELOAD has, its priority, and the broker's socket of that
level, gpreempt.io/objective and gpreempt.io/memory-limit. All is mounted read-only. The runtime never gets an error: what cannot be given is
counted, and the container runs without the library. When the runtime is started again, so is the registration.`,
		Args:    cli.NoArguments,
		Version: cli.Version(version),
		RunE:    func(c *cobra.Command, _ []string) error { return serve(c.Context(), c.ErrOrStderr(), o) },
	}
	flags := command.Flags()
	flags.StringVar(&o.socket, "socket", nri.DefaultSocket, "the runtime's `socket` for plugins")
	flags.StringVarP(&o.config, "config", "c", "", "TOML `file` of the best levels and the roles of namespaces; without it the best is be")
	flags.StringVar(&o.library, "library", inject.Folder+"/"+currentLink, "`folder` of the host that containers get as "+inject.Folder+": see gpreempt-nri install")
	flags.StringVar(&o.sockets, "sockets", join.Directory, "`directory` of the host with the broker's sockets")
	flags.StringVar(&o.pods, "pods", "", "`folder` of the host that tells gpreemptd --pods which pod a container is of; it is made where it is not there")
	flags.StringArrayVar(&o.exclude, "exclude", nil, "`namespace` whose pods are left alone, beside kube-system; may be repeated")
	flags.DurationVar(&o.budget, "budget", nri.DefaultBudget, "how long a container may wait for the host's files, and then starts without the library")
	flags.StringVar(&o.listen, "listen", "127.0.0.1:9406", "serve /metrics, /healthz and /readyz at this `address`")
	flags.StringVar(&o.level, "log", "info", servicelog.Usage)
	command.AddCommand(installCommand(), probeCommand())
	return command
}

func main() { os.Exit(cli.Run(rootCommand())) }

func serve(ctx context.Context, out io.Writer, o options) error {
	log, err := servicelog.New(out, o.level)
	if err != nil {
		return err
	}
	config, err := nri.Load(o.config)
	if err != nil {
		return cli.Usage(fmt.Errorf("--config: %w", err))
	}
	if err := cli.CheckAddress(o.listen, "127.0.0.1:9406"); err != nil {
		return err
	}
	if o.budget <= 0 {
		return cli.Usage(fmt.Errorf("--budget %v: must be more than 0", o.budget))
	}
	config.Budget, config.Library, config.Sockets, config.Excluded = o.budget, o.library, o.sockets, append(config.Excluded, o.exclude...)
	if config.Pods = o.pods; o.pods != "" {
		if err := os.MkdirAll(o.pods, 0o700); err != nil {
			return fmt.Errorf("--pods: %w", err)
		}
	}
	listener, err := net.Listen("tcp", o.listen)
	if err != nil {
		return fmt.Errorf("--listen %q: %w", o.listen, err)
	}
	ctx, stop := signal.NotifyContext(ctx, os.Interrupt, syscall.SIGTERM)
	defer stop()
	plugin := nri.New(config, log)
	server := &http.Server{Handler: handler(plugin), ReadTimeout: requestIn, WriteTimeout: 2 * requestIn, MaxHeaderBytes: mostHeader}
	served := make(chan error, 1)
	go func() { served <- server.Serve(listener) }()
	log.Info().Str("version", cli.Version(version)).Str("address", listener.Addr().String()).Msg("serving")
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		plugin.Run(ctx, o.socket)
	}()
	select {
	case err = <-served:
		stop()
		<-ended
		return fmt.Errorf("serve: %w", err)
	case <-ended: // by a signal
	}
	return server.Close()
}

const (
	requestIn   = 5 * time.Second
	mostHeader  = 16 << 10
	mostScrapes = 4 // at once
)

func handler(plugin *nri.Plugin) http.Handler {
	registry := prometheus.NewRegistry()
	plugin.Register(registry)
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", promhttp.HandlerFor(registry, promhttp.HandlerOpts{MaxRequestsInFlight: mostScrapes, Timeout: requestIn}))
	for path, state := range map[string]func() error{"GET /healthz": plugin.Healthy, "GET /readyz": plugin.Ready} {
		mux.HandleFunc(path, func(w http.ResponseWriter, _ *http.Request) {
			if err := state(); err != nil {
				http.Error(w, err.Error(), http.StatusServiceUnavailable)
				return
			}
			fmt.Fprintln(w, "ok")
		})
	}
	mux.HandleFunc("/", func(w http.ResponseWriter, _ *http.Request) {
		http.Error(w, "there are GET /metrics, GET /healthz and GET /readyz", http.StatusNotFound)
	})
	return mux
}

func probeCommand() *cobra.Command {
	var broker, url string
	command := &cobra.Command{
		Use:   "probe [--broker DIRECTORY] [--url URL]",
		Short: "Say whether a broker or a plugin does its work",
		Long: "A probe of Kubernetes runs it: unlike one by HTTP, it has the reason in its event, and an image without a shell has no other\n" +
			"program for it.",
		Args: cli.NoArguments,
		RunE: func(c *cobra.Command, _ []string) error {
			if broker == "" && url == "" {
				return cli.Usage(errors.New("probe: of what? --broker DIRECTORY or --url URL"))
			}
			if broker != "" {
				if err := probeBroker(broker); err != nil {
					return err
				}
			}
			if url != "" {
				return probeURL(c.Context(), url)
			}
			return nil
		},
	}
	command.Flags().StringVar(&broker, "broker", "", "`directory` of the sockets of a broker, which must answer")
	command.Flags().StringVar(&url, "url", "", "`address` that must be answered with 200, as http://127.0.0.1:9406/readyz")
	return command
}

const lowest = 7 // everybody may have that level

func probeBroker(directory string) error {
	_, err := join.Query(join.SocketIn(directory, lowest), lowest, segment.Version, requestIn)
	if refused := (join.RefusedError{}); errors.As(err, &refused) {
		return nil // for a quota, or by the policy: that is an answer
	}
	if err != nil {
		return fmt.Errorf("the broker does not answer, so programs of different pods do not know of each other: %w", err)
	}
	return nil
}

func probeURL(ctx context.Context, url string) error {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return cli.Usage(err)
	}
	answer, err := (&http.Client{Timeout: requestIn}).Do(request)
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(io.LimitReader(answer.Body, 1<<10))
	if err == nil && answer.StatusCode != http.StatusOK {
		err = errors.New(string(text))
	}
	return err
}
