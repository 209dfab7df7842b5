// Measures a function with and without a probe of Kieker, in laps of many calls. In the pause after
// each lap the writer catches up. `probe.rs` does the same with Rust libraries. The probe does the
// work of Kieker's aspect for AspectJ without AspectJ, which would not reduce the cost.

import java.lang.management.ManagementFactory;
import java.util.Arrays;
import kieker.common.record.controlflow.OperationExecutionRecord;
import kieker.monitoring.core.controller.IMonitoringController;
import kieker.monitoring.core.controller.MonitoringController;
import kieker.monitoring.core.registry.ControlFlowRegistry;
import kieker.monitoring.core.registry.SessionRegistry;
import kieker.monitoring.timer.ITimeSource;

public final class Kieker {
    private static final IMonitoringController CONTROLLER = MonitoringController.getInstance();
    private static final ITimeSource TIME = CONTROLLER.getTimeSource();
    private static final String HOST = CONTROLLER.getHostname();
    private static final ControlFlowRegistry FLOW = ControlFlowRegistry.INSTANCE;
    private static final SessionRegistry SESSIONS = SessionRegistry.INSTANCE;
    private static final String SIGNATURE = "public static int Kieker.probed(int)";

    private static int plain(final int depth) {
        return depth == 0 ? 1 : plain(depth - 1) + 1;
    }

    private static int probed(final int depth) {
        if (!CONTROLLER.isMonitoringEnabled() || !CONTROLLER.isProbeActivated(SIGNATURE)) {
            return depth == 0 ? 1 : probed(depth - 1) + 1;
        }
        final boolean isEntry;
        final int eoi;
        final int ess;
        long traceId = FLOW.recallThreadLocalTraceId();
        if (traceId == -1) {
            isEntry = true;
            traceId = FLOW.getAndStoreUniqueThreadLocalTraceId();
            FLOW.storeThreadLocalEOI(0);
            FLOW.storeThreadLocalESS(1);
            eoi = 0;
            ess = 0;
        } else {
            isEntry = false;
            eoi = FLOW.incrementAndRecallThreadLocalEOI();
            ess = FLOW.recallAndIncrementThreadLocalESS();
        }
        final long begin = TIME.getTime();
        try {
            return depth == 0 ? 1 : probed(depth - 1) + 1;
        } finally {
            final long end = TIME.getTime();
            CONTROLLER.newMonitoringRecord(new OperationExecutionRecord(
                    SIGNATURE, SESSIONS.recallThreadLocalSessionId(), traceId, begin, end, HOST, eoi, ess));
            if (isEntry) {
                FLOW.unsetThreadLocalTraceId();
                FLOW.unsetThreadLocalEOI();
                FLOW.unsetThreadLocalESS();
            } else {
                FLOW.storeThreadLocalESS(ess);
            }
        }
    }

    private static long pauseMs;
    private static long sum;

    private static long lap(final boolean isProbed, final int outer, final int depth) throws InterruptedException {
        final long begin = System.nanoTime();
        for (int i = 0; i < outer; i++) {
            sum += isProbed ? probed(depth - 1) : plain(depth - 1);
        }
        final long ns = System.nanoTime() - begin;
        Thread.sleep(pauseMs);
        return ns;
    }

    /** CPU time of all threads. */
    private static long cpuNs() {
        return ((com.sun.management.OperatingSystemMXBean) ManagementFactory.getOperatingSystemMXBean()).getProcessCpuTime();
    }

    /** Arguments: whether the probe is enabled, the depth, the calls of a lap, the laps that warm
     * up, the measured laps, and the pause after each lap. */
    public static void main(final String[] args) throws Exception {
        final int depth = Integer.parseInt(args[1]);
        final int outer = Integer.parseInt(args[2]) / depth;
        final int warm = Integer.parseInt(args[3]);
        final int laps = Integer.parseInt(args[4]);
        pauseMs = Long.parseLong(args[5]);
        final double calls = (double) outer * depth;
        if (!Boolean.parseBoolean(args[0])) {
            CONTROLLER.disableMonitoring();
        }
        final double[] netNs = new double[laps];
        long plainCpuNs = 0;
        long beginCpuNs = 0;
        for (int number = -warm; number < laps; number++) {
            if (number == 0) {
                beginCpuNs = cpuNs();
                plainCpuNs = 0;
            }
            final long before = cpuNs();
            final long plainNs = lap(false, outer, depth);
            plainCpuNs += cpuNs() - before;
            final long withNs = lap(true, outer, depth);
            if (number >= 0) {
                netNs[number] = (withNs - plainNs) / calls;
            }
        }
        final double netCpuNs = cpuNs() - beginCpuNs - 2.0 * plainCpuNs;
        Arrays.sort(netNs);
        final double median = (netNs[laps / 2] + netNs[(laps - 1) / 2]) / 2;
        CONTROLLER.terminateMonitoring();
        CONTROLLER.waitForTermination(30_000);
        System.out.printf("value %f%ncpu %f%nmeasured %f%ncalls %f%nchecksum %016x%n",
                median, netCpuNs, calls * laps, calls * (warm + laps), sum);
    }
}
