package ignition_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"stoker.io/stoker/agent/ignition"
	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/test/gateway/simulator"
)

func TestScan(t *testing.T) {
	for _, skew := range []time.Duration{0, time.Hour, -time.Hour} {
		t.Run("clock off by "+skew.String(), func(t *testing.T) {
			dir := t.TempDir()
			g := start(t, simulator.Options{Data: dir, Strict: true, ScanDelay: 20 * time.Millisecond, ClockSkew: skew})
			put(t, dir, "projects/P/project.json", projectJSON)
			require.Nil(t, g.Data.Loaded("projects/P"))
			result, err := client(t, g).Scan(t.Context(), ignition.Projects)
			require.NoError(t, err)
			assert.NotNil(t, g.Data.Loaded("projects/P"))
			assert.Equal(t, 1, result.Posts)
			assert.False(t, result.Status.Active)
			assert.WithinDuration(t, time.Now().Add(skew), result.Status.Last, time.Minute)
			assert.Equal(t, 1, g.Requests.Count(postProjects))
			assert.Zero(t, g.Requests.Count("POST /data/api/v1/scan/config"))
			assert.Empty(t, g.Requests.Violations())
		})
	}
}

func TestScanOfConfig(t *testing.T) {
	g := start(t, simulator.Options{})
	before := g.Scans.Completed("projects")
	_, err := client(t, g).Scan(t.Context(), ignition.ConfigScan)
	require.NoError(t, err)
	assert.Equal(t, 2, g.Scans.Completed("config"), "the start of the gateway counts as a scan, too")
	assert.Equal(t, before, g.Scans.Completed("projects"))
}

// failScans adds a fault of the server, or if there is none, one of the scans.
func failScans(t *testing.T, g *simulator.Gateway, fault simulator.Fault, scans simulator.ScanFault) {
	t.Helper()
	if fault.Route == "" {
		require.NoError(t, g.Scans.Fault("projects", scans))
		return
	}
	require.NoError(t, g.Faults.Add(fault))
}

func TestScanRetry(t *testing.T) {
	for name, fault := range map[string]simulator.Fault{
		"scan without a result": {},
		"server error":          {Route: postProjects, Status: 500, Times: 2},
		"starting":              {Route: getProjects, Status: 503, Times: 2},
		"reset":                 {Route: postProjects, Reset: true, Times: 2},
		"lost answer":           {Route: postProjects, Reset: true, Times: 2, After: true},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			g := start(t, simulator.Options{Data: dir})
			failScans(t, g, fault, simulator.ScanFault{Fails: 2, Delay: time.Millisecond})
			put(t, dir, "projects/P/project.json", projectJSON)
			_, err := client(t, g).Scan(t.Context(), ignition.Projects)
			require.NoError(t, err)
			assert.NotNil(t, g.Data.Loaded("projects/P"))
		})
	}
}

func TestScanRetryLimit(t *testing.T) {
	for name, fault := range map[string]simulator.Fault{
		"scan without a result": {}, "server error": {Route: postProjects, Status: 500}, "reset": {Route: postProjects, Reset: true},
	} {
		t.Run(name, func(t *testing.T) {
			g := start(t, simulator.Options{})
			failScans(t, g, fault, simulator.ScanFault{Fails: 100})
			result, err := client(t, g).Scan(t.Context(), ignition.Projects)
			requireReason(t, v1alpha1.ReasonScanFailed, err)
			assert.Equal(t, 4, result.Posts)
			assert.Equal(t, 4, g.Requests.Count(postProjects))
		})
	}
}

func TestEndlessScanPostsOnce(t *testing.T) {
	g := start(t, simulator.Options{})
	require.NoError(t, g.Scans.Fault("projects", simulator.ScanFault{NeverEnds: true}))
	c := client(t, g, func(c *ignition.Config) { c.ScanTimeout = 60 * time.Millisecond })
	_, err := c.Scan(t.Context(), ignition.Projects)
	requireReason(t, v1alpha1.ReasonScanFailed, err)
	assert.ErrorContains(t, err, "did not end in time")
	assert.Equal(t, 1, g.Requests.Count(postProjects))
}

func TestScanSurvivesPollErrors(t *testing.T) {
	for name, f := range map[string]simulator.Fault{
		"server error": {Status: 500}, "starting": {Status: 503}, "reset": {Reset: true}, "not JSON": {Status: 200, Body: "<html>"},
	} {
		t.Run(name, func(t *testing.T) {
			g := start(t, simulator.Options{})
			require.NoError(t, g.Faults.Add(simulator.Fault{Route: getProjects, Status: 200, Times: 1, // the status request before the POST
				Body: `{"scanActive":false,"lastScanTimestamp":1,"lastScanDuration":0}`}))
			require.NoError(t, g.Scans.Fault("projects", simulator.ScanFault{Delay: 5 * time.Millisecond}))
			f.Route, f.Times = getProjects, 3
			require.NoError(t, g.Faults.Add(f))
			result, err := client(t, g).Scan(t.Context(), ignition.Projects)
			require.NoError(t, err)
			assert.Equal(t, 1, result.Posts)
		})
	}
}

// A scan in progress may have read the tree before the latest writes, so the client requests another one.
func TestScanDuringAnotherScan(t *testing.T) {
	for _, coalesce := range []bool{false, true} {
		t.Run(fmt.Sprintf("coalesces %t", coalesce), func(t *testing.T) {
			g := start(t, simulator.Options{Unknowns: simulator.Unknowns{CoalescePosts: coalesce}})
			require.NoError(t, g.Scans.Fault("projects", simulator.ScanFault{NeverEnds: true}))
			other := client(t, g)
			done := make(chan error, 2)
			go func() {
				_, err := other.Scan(t.Context(), ignition.Projects)
				done <- err
			}()
			posted := func(n int) bool {
				return assert.Eventually(t, func() bool { return g.Requests.Count(postProjects) == n }, bound, time.Millisecond)
			}
			require.True(t, posted(1))
			require.Eventually(t, func() bool { // the simulator counts a request before its scan begins
				status, err := other.ScanStatus(t.Context(), ignition.Projects)
				return err == nil && status.Active
			}, bound, time.Millisecond)
			go func() { // ends the current scan after the second POST
				posted(2)
				done <- g.Scans.Fault("projects", simulator.ScanFault{})
			}()
			result, err := client(t, g).Scan(t.Context(), ignition.Projects)
			require.NoError(t, err)
			assert.Equal(t, 2, result.Posts)
			require.NoError(t, <-done)
			require.NoError(t, <-done)
		})
	}
}

func TestRestartDuringScan(t *testing.T) {
	for name, c := range map[string]struct {
		unknown simulator.Unknowns
		posts   int
	}{
		"start counts as scan": {posts: 1}, "scans forgotten": {unknown: simulator.Unknowns{ForgetScans: true}, posts: 2},
	} {
		t.Run(name, func(t *testing.T) {
			dir, posts := t.TempDir(), c.posts
			g := start(t, simulator.Options{Data: dir, Unknowns: c.unknown})
			put(t, dir, "projects/P/project.json", projectJSON)
			require.NoError(t, g.Scans.Fault("projects", simulator.ScanFault{NeverEnds: true}))
			done := make(chan error, 1)
			c := client(t, g, func(c *ignition.Config) { c.PollInterval = 100 * time.Millisecond }) // a restart takes longer on a busy machine
			go func() {
				result, err := c.Scan(t.Context(), ignition.Projects)
				assert.Equal(t, posts, result.Posts)
				done <- err
			}()
			require.Eventually(t, func() bool { return g.Requests.Count(postProjects) == 1 }, bound, time.Millisecond)
			require.NoError(t, g.Restart(10*time.Millisecond))
			require.NoError(t, <-done)
			assert.NotNil(t, g.Data.Loaded("projects/P"))
		})
	}
}

func TestCanceledScanError(t *testing.T) {
	g := start(t, simulator.Options{})
	require.NoError(t, g.Scans.Fault("projects", simulator.ScanFault{NeverEnds: true}))
	stopped := errors.New("the agent stops")
	ctx, cancel := context.WithCancelCause(t.Context())
	done := make(chan error, 1)
	c := client(t, g)
	go func() {
		_, err := c.Scan(ctx, ignition.Projects)
		done <- err
	}()
	require.Eventually(t, func() bool { return g.Requests.Count(postProjects) == 1 }, bound, time.Millisecond)
	cancel(stopped)
	assert.ErrorIs(t, <-done, stopped)
}

func TestInfo(t *testing.T) {
	dir := t.TempDir()
	g := start(t, simulator.Options{Data: dir, Name: "press-7", Mode: "dev", Version: "8.3.6"})
	info, err := client(t, g).Info(t.Context())
	require.NoError(t, err)
	assert.Equal(t, ignition.Info{Name: "press-7", DeploymentMode: "dev"}, info)
}

func TestParseVersion(t *testing.T) {
	for text, want := range map[string]ignition.Version{
		"8.3.6 (b2026042713)": {Major: 8, Minor: 3, Patch: 6}, "8.1.44": {Major: 8, Minor: 1, Patch: 44},
		"8.3.0-rc1 (b1)": {Major: 8, Minor: 3}, "9.0": {Major: 9}, "": {}, "x": {}, "8.x": {}, "-1.2": {}, "99999999.1": {},
	} {
		t.Run(text, func(t *testing.T) {
			assert.Equal(t, want, ignition.ParseVersion(text), text)
		})
	}
	assert.True(t, ignition.Version{Major: 9}.AtLeast(8, 3))
	assert.False(t, ignition.Version{Major: 8, Minor: 1}.AtLeast(8, 3))
}

func TestProjects(t *testing.T) {
	dir := t.TempDir()
	g := start(t, simulator.Options{Data: dir})
	const many = 503 // more than a page, which has 500
	for i := range many {
		put(t, dir, fmt.Sprintf("projects/p%04d/project.json", i), projectJSON)
	}
	require.NoError(t, g.Scans.Run("projects"))
	projects, err := client(t, g).Projects(t.Context())
	require.NoError(t, err)
	require.Len(t, projects, many)
	for i, p := range projects {
		require.Equal(t, fmt.Sprintf("p%04d", i), p.Name)
	}
	assert.Equal(t, 2, g.Requests.Count("GET /data/api/v1/projects/list"))
}

func TestProjectsWithInvalidParent(t *testing.T) {
	dir := t.TempDir()
	g := start(t, simulator.Options{Data: dir})
	for name, doc := range map[string]string{
		"base":   `{"inheritable":true}`,
		"good":   `{"parent":"base","title":"Good","enabled":false}`,
		"orphan": `{"parent":"nobody"}`,
		"shut":   `{"parent":"good"}`,
		"loop":   `{"parent":"pool","inheritable":true}`,
		"pool":   `{"parent":"loop","inheritable":true}`,
	} {
		put(t, dir, "projects/"+name+"/project.json", doc)
	}
	require.NoError(t, g.Scans.Run("projects"))
	projects, err := client(t, g).Projects(t.Context())
	require.NoError(t, err)
	want := []ignition.Project{
		{Name: "base"},
		{Name: "good", Parent: "base"},
		{Name: "loop", Parent: "pool", InvalidParent: true},
		{Name: "orphan", Parent: "nobody", InvalidParent: true},
		{Name: "pool", Parent: "loop", InvalidParent: true},
		{Name: "shut", Parent: "good", InvalidParent: true},
	}
	assert.Empty(t, cmp.Diff(want, projects))
}

func TestProjectMissingFromList(t *testing.T) {
	dir := t.TempDir()
	g := start(t, simulator.Options{Data: dir, Unknowns: simulator.Unknowns{RunnableOnly: true}})
	put(t, dir, "projects/a b/project.json", `{"title":"Off","enabled":false,"parent":"nobody"}`)
	require.NoError(t, g.Scans.Run("projects"))
	c := client(t, g)
	list, err := c.Projects(t.Context())
	require.NoError(t, err)
	assert.Empty(t, list)
	p, err := c.Project(t.Context(), "a b")
	require.NoError(t, err)
	assert.Equal(t, ignition.Project{Name: "a b", Parent: "nobody", InvalidParent: true}, p)
	_, err = c.Project(t.Context(), "none")
	assert.ErrorIs(t, err, ignition.ErrNotFound)
}

func TestResourceNames(t *testing.T) {
	g := start(t, simulator.Options{})
	c := client(t, g)
	names, err := c.ResourceNames(t.Context(), "ignition", "tag-provider")
	require.NoError(t, err)
	assert.Empty(t, cmp.Diff([]ignition.ResourceName{{Name: "default", Modes: []string{"core"}}}, names))
	_, err = c.ResourceNames(t.Context(), "no/such", "type")
	assert.ErrorIs(t, err, ignition.ErrNotFound)
}

func TestDesigners(t *testing.T) {
	g := start(t, simulator.Options{})
	c := client(t, g)
	none, err := c.Designers(t.Context())
	require.NoError(t, err)
	assert.Empty(t, none)
	_, err = g.Designers.Open("ann", "P")
	require.NoError(t, err)
	some, err := c.Designers(t.Context())
	require.NoError(t, err)
	require.Len(t, some, 1)
	assert.Equal(t, "ann", some[0].User)
	assert.Equal(t, "P", some[0].Project)
}

// The client changes a name that is too long or not printable so that it equals no name of a file.
func TestNamesThatAreNoFiles(t *testing.T) {
	g := start(t, simulator.Options{})
	const same = "a  b é\u00a0\u3000c"
	for name, c := range map[string]struct{ given, want string }{
		"a name":        {same, same},
		"too long":      {strings.Repeat("x", 256), strings.Repeat("x", 99) + "…/…"},
		"not printable": {`a\u001b[0m`, "a[0m/…"},
		"invisible":     {`base\u200b`, "base/…"},
	} {
		t.Run(name, func(t *testing.T) {
			g.Faults.Clear()
			item := `"name":"` + c.given + `","parent":"` + c.given + `","project":"` + c.given + `","deploymentMode":"` + c.given + `"`
			require.NoError(t, g.Faults.Add(simulator.Fault{Route: "* /*", Status: 200, Body: `{"items":[{` + item + `}],` + item + `}`}))
			projects, err := client(t, g).Projects(t.Context())
			require.NoError(t, err)
			assert.Equal(t, []ignition.Project{{Name: c.want, Parent: c.want}}, projects)
			sessions, err := client(t, g).Designers(t.Context())
			require.NoError(t, err)
			assert.Equal(t, []ignition.Designer{{Project: c.want}}, sessions)
			info, err := client(t, g).Info(t.Context())
			require.NoError(t, err)
			assert.Equal(t, ignition.Info{Name: c.want, DeploymentMode: c.want}, info)
		})
	}
}

func TestModules(t *testing.T) {
	c := client(t, start(t, simulator.Options{Modules: []string{"com.inductiveautomation.perspective", "com.example.drivers"}}))
	ids, err := c.Modules(t.Context())
	require.NoError(t, err)
	assert.Equal(t, []string{"com.inductiveautomation.perspective", "com.example.drivers"}, ids)
}

func TestErrorsSince(t *testing.T) {
	for _, skew := range []time.Duration{0, 24 * time.Hour, -24 * time.Hour} {
		t.Run("skew "+skew.String(), func(t *testing.T) {
			dir := t.TempDir()
			g := start(t, simulator.Options{Data: dir, ClockSkew: skew})
			c := client(t, g)
			put(t, dir, "projects/old/project.json", "{")
			require.NoError(t, g.Scans.Run("projects"))
			before, err := c.Scan(t.Context(), ignition.Projects)
			require.NoError(t, err)
			since := before.Status.Last.Add(time.Millisecond)
			require.Eventually(t, func() bool { return time.Now().Add(skew).After(since) }, bound, time.Millisecond)
			put(t, dir, "projects/old/project.json", projectJSON)
			put(t, dir, "projects/new/project.json", "{")
			_, err = c.Scan(t.Context(), ignition.Projects)
			require.NoError(t, err)
			lines, err := c.ErrorsSince(t.Context(), since)
			require.NoError(t, err)
			require.Len(t, lines, 1)
			assert.Contains(t, lines[0].Message, "projects/new")
		})
	}
}

func TestPendingRestarts(t *testing.T) {
	g := start(t, simulator.Options{})
	c := client(t, g)
	pending, err := c.PendingRestarts(t.Context())
	require.NoError(t, err)
	assert.Empty(t, pending)
	require.NoError(t, g.Faults.Add(simulator.Fault{Route: "GET /data/api/v1/restart-tasks/pending", Status: 200, Body: `{"pending":["modules",3]}`}))
	pending, err = c.PendingRestarts(t.Context())
	require.NoError(t, err)
	assert.Equal(t, []string{"modules", "3"}, pending)
}

func TestEndlessList(t *testing.T) {
	g := start(t, simulator.Options{})
	require.NoError(t, g.Faults.Add(simulator.Fault{Route: "GET /data/api/v1/projects/list", Status: 200,
		Body: `{"items":[{"name":"again"}],"metadata":{"total":1000000000}}`}))
	_, err := client(t, g).Projects(t.Context())
	requireReason(t, v1alpha1.ReasonGatewayUnreachable, err)
	assert.Equal(t, 100, g.Requests.Count("GET /data/api/v1/projects/list"))
}

func TestTrialExpired(t *testing.T) {
	g := start(t, simulator.Options{})
	c := client(t, g)
	for _, expired := range []bool{true, false} {
		g.Trial.SetExpired(expired)
		got, err := c.TrialExpired(t.Context())
		require.NoError(t, err)
		assert.Equal(t, expired, got)
	}
	require.NoError(t, g.Faults.Add(simulator.Fault{Route: "GET /data/api/v1/trial", Status: 200, Body: `{"licenseMode":"Activated","expired":true}`}))
	got, err := c.TrialExpired(t.Context())
	require.NoError(t, err)
	assert.False(t, got, "a licensed gateway has no expired trial")
}
