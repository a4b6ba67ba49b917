package metrics

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	dto "github.com/prometheus/client_model/go"

	"github.com/gpreempt/gpreempt/broker/wire"
)

// gathered are the series of a collector, as NAME{LABELS} VALUE; its names are linted, and each is in the descriptions.
func gathered(t *testing.T, c prometheus.Collector) (all map[string]float64) {
	t.Helper()
	problems, err := testutil.CollectAndLint(c)
	if err != nil || len(problems) != 0 {
		t.Errorf("%+v, %v", problems, err)
	}
	registry := prometheus.NewPedanticRegistry()
	registry.MustRegister(c)
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	known := series()
	all = map[string]float64{}
	for _, f := range families {
		d := known[f.GetName()]
		if !strings.EqualFold(d.Type, f.GetType().String()) || d.Help+"." != f.GetHelp() {
			t.Errorf("%s is described as %+v", f.GetName(), d)
		}
		for _, m := range f.GetMetric() {
			name := f.GetName()
			for i, l := range m.GetLabel() {
				if name += fmt.Sprintf("{%s=%q}", l.GetName(), l.GetValue()); i >= len(d.Labels) || d.Labels[i] != l.GetName() {
					t.Errorf("%s is described as %+v", name, d)
				}
			}
			all[name] = m.GetCounter().GetValue()
			if f.GetType() == dto.MetricType_GAUGE {
				all[name] = m.GetGauge().GetValue()
			}
		}
	}
	return all
}

func TestBroker(t *testing.T) {
	counted := &wire.Counted{StartedNs: 5e9, Clients: 1, Members: 2, Connections: 3, GPUs: 4, Joined: 5, Returned: 6, Sent: 7, ReceivedBytes: 8, SentBytes: 9,
		Throttled: 10, Lost: 11, Failed: 12}
	counted.Refused[wire.RefusedOff], counted.Received[wire.TypeHello], counted.Received[0] = 13, 14, 15
	var err error
	b := NewBroker(func() (*wire.Counted, error) { return counted, err })
	want := map[string]float64{
		"up": 1, "start_time_seconds": 5, "policy_valid": 1, "condition_errors_total": 12, "gpus": 4, "clients": 1, "members": 2, "connections": 3,
		"joins_total": 5, "returns_total": 6, "members_lost_total": 11, `refusals_total{reason="off"}`: 13, `refusals_total{reason="quota"}`: 0, "throttles_total": 10,
		`messages_received_total{type="hello"}`: 14, `messages_received_total{type="none"}`: 15, "messages_sent_total": 7, "received_bytes_total": 8, "sent_bytes_total": 9,
	}
	got := gathered(t, b)
	for name, value := range want {
		if is, there := got[Prefix+"broker_"+name]; !there || is != value {
			t.Errorf("%s is %v, %t, want %v", name, is, there, value)
		}
	}
	if len(got) != len(want)+18 { // nine reasons and nine types more
		t.Errorf("%d series: %v", len(got), got)
	}
	counted.PolicyWrong = 1
	if got := gathered(t, b); got[Prefix+"broker_policy_valid"] != 0 {
		t.Errorf("%v", got)
	}
	counted, err = nil, errors.New("it does not answer")
	if got := gathered(t, b); len(got) != 1 || got[Prefix+"broker_up"] != 0 {
		t.Errorf("%v", got)
	}
	err = nil
	if got := gathered(t, b); len(got) != 0 {
		t.Errorf("without a broker: %v", got)
	}
}

// A process under the library is no outsider on its GPU. A process that is listed twice counts once.
func TestOutsiders(t *testing.T) {
	o := NewOutsiders(func() map[int]bool { return map[int]bool{1: true, 7: true} })
	if got := gathered(t, o); len(got) != 0 {
		t.Errorf("before it is known: %v", got)
	}
	o.Set(map[string][]User{"GPU-1": {{1, 5, true}, {2, 10, true}, {3, 20, false}, {2, 10, true}, {0, 1, true}, {0, 1, false}}, "GPU-2": {{7, 5, true}}})
	want := map[string]float64{
		`outsiders{uuid="GPU-1"}`: 4, `outsiders_working{uuid="GPU-1"}`: 2, `outsiders_memory_bytes{uuid="GPU-1"}`: 32,
		`outsiders{uuid="GPU-2"}`: 0, `outsiders_working{uuid="GPU-2"}`: 0, `outsiders_memory_bytes{uuid="GPU-2"}`: 0,
	}
	got := gathered(t, o)
	for name, value := range want {
		if is, there := got[Prefix+name]; !there || is != value {
			t.Errorf("%s is %v, %t, want %v", name, is, there, value)
		}
	}
	if len(got) != len(want) {
		t.Errorf("%v", got)
	}
	o.Set(nil)
	if got := gathered(t, o); len(got) != 0 {
		t.Errorf("when it is not known any more: %v", got)
	}
}
