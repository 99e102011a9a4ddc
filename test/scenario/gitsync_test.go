package scenario

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// gitSyncCases lists the test functions in test_e2e.sh of git-sync, without their prefix.
const gitSyncCases = `
	init_root_doesnt_exist init_root_exists_empty init_root_flag_is_weird init_root_flag_has_symlink
	init_root_is_under_another_repo init_root_fails_sanity bad_ref_non_zero_exit sync_default_ref sync_head
	sync_head_absolute_link sync_head_subdir_link sync_branch sync_branch_switch sync_tag sync_annotated_tag
	sync_sha sync_sha_once sync_sha_once_sync_different_sha_known sync_sha_once_sync_different_sha_unknown
	sync_sha_shafile_exists readlink worktree_cleanup worktree_unexpected_removal sync_recover_wrong_worktree_hash
	stale_worktree_timeout stale_worktree_timeout_restart v3_v4_upgrade_in_place sync_crash_no_link_cleanup_retry
	sync_crash_no_worktree_cleanup_retry sync_repo_switch error_slow_git_short_timeout sync_slow_git_long_timeout
	sync_on_signal_sighup sync_on_signal_hup sync_on_signal_1 sync_depth_default_shallow sync_depth_across_updates
	sync_depth_change_on_restart filter_partial_clone_blob_none filter_with_sparse_checkout filter_across_updates
	auth_http_password auth_http_password_in_url auth_http_password_file auth_password_file_reload auth_ssh
	auth_ssh_url auth_askpass_url_wrong_password auth_askpass_url_correct_password auth_askpass_url_sometimes_wrong
	auth_askpass_url_flaky auth_askpass_url_slow_start auth_github_app_application_id auth_github_app_client_id
	exechook_success exechook_fail_retry exechook_success_once exechook_fail_once exechook_startup_after_crash
	pre_publish_exechook_success pre_publish_exechook_fail_retry pre_publish_exechook_success_once
	pre_publish_exechook_fail_once pre_publish_exechook_startup_after_crash webhook_success webhook_fail_retry
	webhook_success_once webhook_fail_retry_once webhook_fire_and_forget expose_http expose_http_after_restart
	submodule_sync_off submodule_sync_default submodule_sync_depth submodule_sync_shallow submodule_sync_relative
	submodule_sync_over_ssh_different_keys submodule_sync_over_http_different_passwords sparse_checkout
	additional_git_configs exechook_git_archive export_error export_error_abs_path touch_file touch_file_abs_path
	github_https gc_default gc_auto gc_always gc_aggressive gc_off init_period_faster_initial_sync
	init_max_failures_exceeded
`

var answer = regexp.MustCompile("^\\| ([a-z0-9_]+) \\| (no such option|`([a-z/]+) (Test[A-Za-z0-9]+)`) \\| (.*) \\|$")

// gitsync.md answers each test case of git-sync, a comparable sidecar. Every test that it names must
// exist.
func TestGitSyncCases(t *testing.T) {
	raw, err := os.ReadFile("gitsync.md")
	require.NoError(t, err)
	want := strings.Fields(gitSyncCases)
	require.Len(t, want, 93)
	var got []string
	declared := map[string]map[string]bool{}
	for line := range strings.Lines(string(raw)) {
		if !strings.HasPrefix(line, "| ") || strings.HasPrefix(line, "| case |") {
			continue
		}
		m := answer.FindStringSubmatch(strings.TrimSpace(line))
		require.NotNil(t, m, "gitsync.md: not a row: %s", line)
		got = append(got, m[1])
		if m[3] == "" {
			assert.Regexp(t, "^because .{20,}", m[5], "%s: give the reason", m[1])
			continue
		}
		if declared[m[3]] == nil {
			declared[m[3]] = tests(t, m[3])
		}
		assert.True(t, declared[m[3]][m[4]], "%s: %s has no %s", m[1], m[3], m[4])
	}
	slices.Sort(want)
	slices.Sort(got)
	assert.Equal(t, want, got)
}

var function = regexp.MustCompile(`(?m)^func (Test[A-Za-z0-9]+)\(t \*testing\.T\)`)

// tests returns the names of the tests in a package.
func tests(t *testing.T, dir string) map[string]bool {
	t.Helper()
	files, err := filepath.Glob(filepath.Join("..", "..", filepath.FromSlash(dir), "*_test.go"))
	require.NoError(t, err)
	require.NotEmpty(t, files, "no tests in %s", dir)
	names := map[string]bool{}
	for _, f := range files {
		b, err := os.ReadFile(f)
		require.NoError(t, err)
		for _, m := range function.FindAllStringSubmatch(string(b), -1) {
			names[m[1]] = true
		}
	}
	return names
}
