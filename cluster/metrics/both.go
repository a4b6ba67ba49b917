package metrics

import (
	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
)

// both is a native histogram that has buckets too, for who does not read native ones.
type both struct {
	prometheus.Metric
	buckets prometheus.Metric
}

// Write is prometheus.Metric's.
func (b both) Write(to *dto.Metric) error {
	var classic dto.Metric
	if err := b.buckets.Write(&classic); err != nil {
		return err
	}
	if err := b.Metric.Write(to); err != nil {
		return err
	}
	to.Histogram.Bucket = classic.Histogram.Bucket
	return nil
}
