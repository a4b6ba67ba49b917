// Command gpreempt-metrics gives Prometheus metrics of the segments of this user. It is `gpreempt top --prometheus` and
// `gpreempt top --listen`.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/common/expfmt"
	"github.com/spf13/cobra"

	"github.com/gpreempt/gpreempt/broker/wire"
	"github.com/gpreempt/gpreempt/cluster/metrics"
	"github.com/gpreempt/gpreempt/internal/cli"
	"github.com/gpreempt/gpreempt/preempt/member"
	"github.com/gpreempt/gpreempt/preempt/segment"
)

// version is set by the Makefile.
var version string

func rootCommand() *cobra.Command {
	var config, listen, folder string
	var others bool
	command := &cobra.Command{
		Use:   "gpreempt-metrics",
		Short: "Print or serve Prometheus metrics of the GPUs and processes under the library",
		Long: `Prints the metrics of this user's GPUs in Prometheus' text format. With --listen it serves them at /metrics, and at
/healthz whether the segments can be read, until SIGINT or SIGTERM.

Each series is of a GPU, a level, and the container and pod that /proc/PID/cgroup names; none is of a process. What
processes counted stays in the sums when they have ended, as long as this program serves them. Without --listen the
sums are those of the processes that are there.`,
		Args:    cli.NoArguments,
		Version: cli.Version(version),
		RunE: func(command *cobra.Command, _ []string) error {
			settings, _, _, err := cli.LoadConfig(config)
			if err != nil {
				return cli.Usage(err)
			}
			watch := segment.NewWatch(settings.Segment.Directory, settings.Segment.Group)
			defer watch.Close()
			read := &reader{read: func() ([]segment.Snapshot, error) { return member.Both(watch.Look, settings.Segment.Broker) }}
			collector := metrics.New(read.look, metrics.ByCgroup("/proc", folder), command.Version)
			outsiders := metrics.NewOutsiders(read.known)
			broker := metrics.NewBroker(func() (*wire.Counted, error) { return askBroker(settings.Segment.Broker) })
			if !command.Flags().Changed("listen") {
				if err := collector.Look(); err != nil {
					return err
				}
				if others {
					watchUsers(command.Context(), outsiders, false, io.Discard)
				}
				return printText(command.OutOrStdout(), collector, outsiders, broker)
			}
			if err := cli.CheckAddress(listen, "127.0.0.1:9405"); err != nil {
				return err
			}
			ctx, stop := signal.NotifyContext(command.Context(), os.Interrupt, syscall.SIGTERM)
			defer stop()
			return serve(ctx, listen, collector, command.ErrOrStderr(), func(ctx context.Context) {
				if others {
					watchUsers(ctx, outsiders, true, command.ErrOrStderr())
				}
			}, outsiders, broker)
		},
	}
	command.Flags().StringVar(&listen, "listen", "", "serve at this `address`, as 127.0.0.1:9405 or :9405")
	command.Flags().StringVar(&folder, "pods", "", "`folder` where gpreempt-nri --pods says which pod a container is of: for the label namespace")
	command.Flags().BoolVar(&others, "others", true, "look for processes on the GPUs that are not under the library, by gpreempt and NVIDIA's management library")
	command.Flags().StringVarP(&config, "config", "c", "", "configuration file that names the segments' directory and group")
	return command
}

func printText(out io.Writer, collectors ...prometheus.Collector) error {
	registry := prometheus.NewRegistry()
	registry.MustRegister(collectors...)
	families, err := registry.Gather()
	if err != nil {
		return err
	}
	for _, family := range families {
		if _, err := expfmt.MetricFamilyToText(out, family); errors.Is(err, syscall.EPIPE) {
			return nil
		} else if err != nil {
			return fmt.Errorf("print: %w", err)
		}
	}
	return nil
}

func main() { os.Exit(cli.Run(rootCommand())) }
