package lead

import (
	"context"
	"fmt"
	"net/http"
	"time"

	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/internal/httpclient"
)

// probeEvery is the time between two health checks.
const probeEvery = 5 * time.Second

// maxHealthAnswer bounds the body of an answer, which nothing reads.
const maxHealthAnswer = 1 << 20

// probe is the result of one health check.
type probe struct {
	step string // see progress.probe
	err  error
}

// probe starts the health check of a decision if it is due. Its result arrives in t.rolling.results.
func (t *term) probe(ctx context.Context, p progress) {
	r := &t.rolling
	if p.check == nil {
		return
	}
	if r.health.step != p.probe {
		r.health, r.nextProbe = health{step: p.probe}, time.Time{}
	}
	if r.probing {
		return
	}
	if now := t.now(); now.Before(r.nextProbe) {
		r.due = earlier(r.due, r.nextProbe)
		return
	}
	r.probing = true
	check, step, results := *p.check, p.probe, r.results
	t.polling.Go(func() { results <- probe{step, send(ctx, check)} })
}

// send sends a health check. The answer counts by its status alone.
func send(ctx context.Context, c v1alpha1.HealthCheck) error {
	client := httpclient.Client{CA: []byte(c.CABundle), InsecureSkipVerify: c.InsecureSkipVerify, Timeout: c.TimeoutDuration(), MaxAnswer: maxHealthAnswer}
	answer, err := client.Do(ctx, http.MethodGet, c.URL, nil, nil)
	if err != nil {
		return err
	}
	if answer.Status != int(c.ExpectedStatus) {
		return fmt.Errorf("the answer has status %d instead of %d", answer.Status, c.ExpectedStatus)
	}
	return nil
}
