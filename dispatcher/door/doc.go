// Package door lets a tenant's submits in, or says when to come again: before anything is stored, with a few atomic loads
// for who has no limit, and one GCRA for who has.
//
//	Admit ◀── gates, one for each tenant that has something or was heard of lately
//	            ▲
//	          Step, four times a second: what the loop counts, what the peers' reports say ──▶ flowcontrol/pressure
//
// Every node counts what it owns (tasks that wait and end, exactly) and what is asked of its door (Report), tells its peers
// with its statistics, and decides from all reports, its own one included. A limit holds for the cluster; each
// door takes the part of it that its part of the tenant's submits is.
//
// # Hard caps
//
// Rows, bytes and rate of a tenant (task.Tenant) hold whatever the pressure. The rate is exact at one door; rows and bytes
// are as old as the reports, a quarter of a second, but for what this door let in.
//
// # Without reports
//
// A report that is older than 10 s counts no more, and neither does a decision. What is not known limits nobody; the hard
// caps stay.
//
// # Many tenants
//
// A tenant without a gate is counted by Sample and Hold (flowcontrol/heavy): who is heavy gets one.
//
// # Goroutines
//
// Run owns one, which calls Step. Admit is called by any.
package door
