package metrics

import (
	"maps"
	"slices"
	"strings"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/gpreempt/gpreempt/broker/wire"
)

// brokerRow is a metric of a broker. None has labels of users, programs or containers.
type brokerRow struct {
	name, help, unit string
	kind             kind
	label            string // "": none
	read             func(c *wire.Counted) map[string]float64
}

// one is the value of a row without a label.
func one(read func(c *wire.Counted) uint64) func(c *wire.Counted) map[string]float64 {
	return func(c *wire.Counted) map[string]float64 { return map[string]float64{"": float64(read(c))} }
}

func each(counts map[string]uint64) map[string]float64 {
	all := map[string]float64{}
	for name, n := range counts {
		all[name] = float64(n)
	}
	return all
}

const upHelp = "1 where the broker answers, 0 where there is a socket and it does not."

var brokerRows = []brokerRow{
	{"broker_start_time_seconds", "When the broker started, since 1970.", "seconds", gauge, "",
		func(c *wire.Counted) map[string]float64 { return map[string]float64{"": float64(c.StartedNs) / 1e9} }},
	{"broker_policy_valid", "1 where the policy's file is in force, 0 where it was wrong when it was read last.", "", gauge, "",
		one(func(c *wire.Counted) uint64 { return uint64(1 - c.PolicyWrong) })},
	{"broker_condition_errors_total", "Conditions of the policy that could not be evaluated.", "", counter, "", one(func(c *wire.Counted) uint64 { return c.Failed })},
	{"broker_gpus", "GPUs with clients.", "", gauge, "", one(func(c *wire.Counted) uint64 { return uint64(c.GPUs) })},
	{"broker_clients", "Processes, on each GPU, that have joined or are about to.", "", gauge, "", one(func(c *wire.Counted) uint64 { return uint64(c.Clients) })},
	{"broker_members", "Clients that others see.", "", gauge, "", one(func(c *wire.Counted) uint64 { return uint64(c.Members) })},
	{"broker_connections", "Connections of clients and people.", "", gauge, "", one(func(c *wire.Counted) uint64 { return uint64(c.Connections) })},
	{"broker_joins_total", "Clients that became members.", "", counter, "", one(func(c *wire.Counted) uint64 { return c.Joined })},
	{"broker_returns_total", "Members that lost their connection and came back.", "", counter, "", one(func(c *wire.Counted) uint64 { return c.Returned })},
	{"broker_members_lost_total", "Members that did not read what they were told for too long.", "", counter, "", one(func(c *wire.Counted) uint64 { return c.Lost })},
	{"broker_refusals_total", "Connections and requests that were refused, by reason.", "", counter, "reason",
		func(c *wire.Counted) map[string]float64 { return each(c.RefusedBy()) }},
	{"broker_throttles_total", "Times that a connection was not read for a while, since more had come than the quota allows.", "", counter, "",
		one(func(c *wire.Counted) uint64 { return c.Throttled })},
	{"broker_messages_received_total", "Messages of clients and people, by type; none: what was no message.", "", counter, "type",
		func(c *wire.Counted) map[string]float64 { return each(c.ReceivedBy()) }},
	{"broker_messages_sent_total", "Messages to clients and people.", "", counter, "", one(func(c *wire.Counted) uint64 { return c.Sent })},
	{"broker_received_bytes_total", "Bytes of the messages of clients and people.", "bytes", counter, "", one(func(c *wire.Counted) uint64 { return c.ReceivedBytes })},
	{"broker_sent_bytes_total", "Bytes of the messages to clients and people.", "bytes", counter, "", one(func(c *wire.Counted) uint64 { return c.SentBytes })},
}

func (r *brokerRow) labels() []string {
	if r.label == "" {
		return nil
	}
	return []string{r.label}
}

// Broker is a prometheus.Collector of what a broker says of itself.
type Broker struct {
	ask   func() (counted *wire.Counted, err error)
	up    *prometheus.Desc
	descs []*prometheus.Desc
}

// NewBroker makes one. ask returns nil and no error where there is no broker, and ought to be none.
func NewBroker(ask func() (*wire.Counted, error)) *Broker {
	b := &Broker{ask: ask, up: prometheus.NewDesc(Prefix+"broker_up", upHelp, nil, nil)}
	for _, r := range brokerRows {
		b.descs = append(b.descs, prometheus.NewDesc(Prefix+r.name, r.help, r.labels(), nil))
	}
	return b
}

// Describe is prometheus.Collector's.
func (b *Broker) Describe(to chan<- *prometheus.Desc) {
	to <- b.up
	for _, desc := range b.descs {
		to <- desc
	}
}

// Collect is prometheus.Collector's.
func (b *Broker) Collect(to chan<- prometheus.Metric) {
	counted, err := b.ask()
	if counted == nil && err == nil {
		return
	}
	to <- prometheus.MustNewConstMetric(b.up, prometheus.GaugeValue, float64(yes(err == nil)))
	if err != nil {
		return
	}
	for i, r := range brokerRows {
		as := prometheus.CounterValue
		if r.kind == gauge {
			as = prometheus.GaugeValue
		}
		values := r.read(counted)
		for _, name := range slices.Sorted(maps.Keys(values)) {
			var labels []string
			if r.label != "" {
				labels = []string{name}
			}
			to <- prometheus.MustNewConstMetric(b.descs[i], as, values[name], labels...)
		}
	}
}

// brokerDescriptions are of all metrics of a broker, in order.
func brokerDescriptions() []Description {
	all := []Description{{Prefix + "broker_up", string(gauge), "", strings.TrimSuffix(upHelp, "."), nil}}
	for _, r := range brokerRows {
		all = append(all, Description{Prefix + r.name, string(r.kind), r.unit, strings.TrimSuffix(r.help, "."), r.labels()})
	}
	return all
}
