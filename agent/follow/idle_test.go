package follow

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	gosync "sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic/fake"
	clienttesting "k8s.io/client-go/testing"

	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/internal/kube"
	"stoker.io/stoker/test/program"
)

// C3, C10: a reporter sends few writes in virtual hours, whatever its input, and loses none.
func TestReportWritesOverHours(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client := fake.NewSimpleDynamicClientWithCustomListKinds(runtime.NewScheme(), map[schema.GroupVersionResource]string{kube.SyncReport.Resource(): "SyncReportList"})
		var mu gosync.Mutex
		sent, broken := map[string]int{}, false
		client.PrependReactor("*", "*", func(a clienttesting.Action) (bool, runtime.Object, error) {
			mu.Lock()
			defer mu.Unlock()
			sent[a.GetVerb()]++
			if broken {
				return true, nil, errors.New("the API server is away")
			}
			return false, nil, nil
		})
		take := func() map[string]int {
			synctest.Wait()
			mu.Lock()
			defer mu.Unlock()
			was := sent
			sent = map[string]int{}
			return was
		}
		log := &program.Log{}
		r := newReporter(kube.SyncReports(client, "ns"), Identity{Namespace: "ns", Pod: "p", PodUID: "u", GatewaySync: "site"}, slog.New(slog.NewTextHandler(log, nil)), time.Now)
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		go r.run(ctx)
		stored := func() v1alpha1.SyncReportStatus {
			t.Helper()
			synctest.Wait()
			s, err := kube.SyncReports(client, "ns").Get(context.WithoutCancel(ctx), "p")
			require.NoError(t, err)
			return s.Status
		}
		status := v1alpha1.SyncReportStatus{Format: 1, Gateway: "g", Phase: v1alpha1.GatewaySynced, Message: "0"}
		for i := range 3600 {
			at := metav1.NewTime(time.Now())
			status.Started, status.Duration = &at, fmt.Sprint(i)
			r.set(status)
			time.Sleep(time.Second)
		}
		got := take()
		assert.Equal(t, 1, got["create"])
		assert.Zero(t, got["update"], "a changed time alone is not written")
		assert.LessOrEqual(t, got["get"], 10, "the reporter checks now and then that the report exists")

		for i := range 600 {
			status.Message = fmt.Sprint(i)
			r.set(status)
			time.Sleep(time.Second)
		}
		got = take()
		assert.LessOrEqual(t, got["update"], 61)
		assert.GreaterOrEqual(t, got["update"], 30)
		for i := range 600 {
			status.Commit = fmt.Sprintf("%040d", i)
			r.set(status)
			time.Sleep(100 * time.Millisecond)
		}
		assert.LessOrEqual(t, take()["update"], 61, "at most one write a second")

		mu.Lock()
		broken = true
		mu.Unlock()
		status.Message = "while it was away"
		r.set(status)
		time.Sleep(10 * time.Minute)
		got = take()
		tries := got["get"] + got["update"] + got["create"]
		assert.LessOrEqual(t, tries, 35)
		assert.GreaterOrEqual(t, tries, 15)
		mu.Lock()
		broken = false
		mu.Unlock()
		time.Sleep(maxReport + maxReport/10 + minorPause)
		assert.Equal(t, "while it was away", stored().Message)

		require.NoError(t, client.Resource(kube.SyncReport.Resource()).Namespace("ns").Delete(ctx, "p", metav1.DeleteOptions{}))
		time.Sleep(checkEvery + checkEvery/10 + 30*time.Second)
		assert.Less(t, checkEvery+checkEvery/10+30*time.Second, v1alpha1.DefaultProgressDeadline, "the check comes before the lead's deadline")
		assert.Equal(t, "while it was away", stored().Message, "a deleted report is written again")

		status.Phase = v1alpha1.GatewaySyncing
		r.set(status)
		time.Sleep(minSyncing / 2)
		status.Phase, status.Message = v1alpha1.GatewaySynced, "brief"
		r.set(status)
		time.Sleep(minorPause)
		take()
		status.Phase = v1alpha1.GatewaySyncing
		r.set(status)
		time.Sleep(2 * minSyncing)
		assert.Equal(t, v1alpha1.GatewaySyncing, stored().Phase, "a long sync is reported")
		assert.Equal(t, 1, take()["update"])
		status.Phase, status.Message = v1alpha1.GatewaySynced, "the end"
		r.set(status)
		cancel()
		synctest.Wait()
		r.flush(context.WithoutCancel(ctx))
		assert.Equal(t, "the end", stored().Message, "the last report is written at shutdown")
	})
}

// An API server that was restored from a backup serves an old report, and does not notify the agent.
func TestReportRewrittenAfterEtcdRestore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client := fake.NewSimpleDynamicClientWithCustomListKinds(runtime.NewScheme(), map[schema.GroupVersionResource]string{kube.SyncReport.Resource(): "SyncReportList"})
		var sent atomic.Int64
		client.PrependReactor("*", "*", func(clienttesting.Action) (bool, runtime.Object, error) { sent.Add(1); return false, nil, nil })
		reports := kube.SyncReports(client, "ns")
		r := newReporter(reports, Identity{Namespace: "ns", Pod: "p", PodUID: "u", GatewaySync: "site"}, slog.New(slog.DiscardHandler), time.Now)
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		go r.run(ctx)
		r.set(v1alpha1.SyncReportStatus{Format: 1, Gateway: "g", Phase: v1alpha1.GatewaySynced, Message: "of today"})
		time.Sleep(time.Minute)

		older, err := reports.Get(ctx, "p")
		require.NoError(t, err)
		older.Status.Message = "of the backup"
		_, err = reports.Update(ctx, older, metav1.UpdateOptions{})
		require.NoError(t, err)
		sent.Store(0)
		time.Sleep(checkEvery + checkEvery/10 + minorPause) // a change of the message alone is written after ten seconds
		synctest.Wait()
		assert.EqualValues(t, 2, sent.Load(), "one read and one write")
		now, err := reports.Get(ctx, "p")
		require.NoError(t, err)
		assert.Equal(t, "of today", now.Status.Message)
		cancel()
		synctest.Wait()
	})
}
