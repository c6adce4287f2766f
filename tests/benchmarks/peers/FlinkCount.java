import java.nio.file.Files;
import java.nio.file.Path;
import java.util.List;
import java.util.Locale;
import java.util.concurrent.atomic.AtomicInteger;
import org.apache.flink.api.common.RuntimeExecutionMode;
import org.apache.flink.api.common.eventtime.WatermarkStrategy;
import org.apache.flink.api.common.functions.OpenContext;
import org.apache.flink.api.common.serialization.SimpleStringEncoder;
import org.apache.flink.api.common.state.CheckpointListener;
import org.apache.flink.api.common.state.ValueState;
import org.apache.flink.api.common.state.ValueStateDescriptor;
import org.apache.flink.api.common.typeinfo.Types;
import org.apache.flink.configuration.CheckpointingOptions;
import org.apache.flink.configuration.Configuration;
import org.apache.flink.configuration.StateBackendOptions;
import org.apache.flink.connector.file.sink.FileSink;
import org.apache.flink.connector.file.src.FileSource;
import org.apache.flink.connector.file.src.reader.TextLineInputFormat;
import org.apache.flink.streaming.api.environment.StreamExecutionEnvironment;
import org.apache.flink.streaming.api.functions.KeyedProcessFunction;
import org.apache.flink.streaming.api.functions.sink.filesystem.rollingpolicies.OnCheckpointRollingPolicy;
import org.apache.flink.util.Collector;

/**
 * A running count per word on a local mini-cluster of two slots: keyed heap state, exactly-once
 * checkpoints to the local disk, the counts written at the end of the input by the exactly-once
 * file sink. Arguments: folder of text files (one word a line), how many of them warm up, folder to
 * write into, milliseconds between checkpoints, seconds to warm up (negative: do not), seconds to repeat the timed run.
 * Prints a line for each timed run: {"seconds": ..., "checkpoints": ..., "folder": ...}.
 */
public class FlinkCount {
    static final AtomicInteger CHECKPOINTS = new AtomicInteger();

    public static void main(String[] args) throws Exception {
        List<String> files;
        try (var found = Files.list(Path.of(args[0]))) {
            files = found.sorted().map(Path::toString).toList();
        }
        int warm = Integer.parseInt(args[1]);
        String folder = args[2];
        long interval = Long.parseLong(args[3]);
        double warmSecs = Double.parseDouble(args[4]);
        double timedSecs = Double.parseDouble(args[5]);
        long began = System.nanoTime();
        for (int n = 0; warmSecs >= 0 && (n == 0 || secondsSince(began) < warmSecs); n++) {
            String into = folder + "/warm-" + n;
            count(files.subList(0, warm), into, into + "-checkpoints", interval);
        }
        began = System.nanoTime();
        for (int n = 0; n == 0 || secondsSince(began) < timedSecs; n++) {
            String into = "timed-" + n;
            CHECKPOINTS.set(0);
            long start = System.nanoTime();
            count(files, folder + "/" + into, folder + "/checkpoints-" + n, interval);
            System.out.printf(
                    Locale.ROOT,
                    "{\"seconds\": %.3f, \"checkpoints\": %d, \"folder\": \"%s\"}%n",
                    secondsSince(start),
                    CHECKPOINTS.get(),
                    into);
        }
        System.out.flush();
        Runtime.getRuntime().halt(0); // its threads would keep the process alive
    }

    static double secondsSince(long nanos) {
        return (System.nanoTime() - nanos) / 1e9;
    }

    static void count(List<String> files, String out, String checkpoints, long interval)
            throws Exception {
        Configuration settings = new Configuration();
        settings.set(StateBackendOptions.STATE_BACKEND, "hashmap");
        settings.set(CheckpointingOptions.CHECKPOINT_STORAGE, "filesystem");
        settings.set(CheckpointingOptions.CHECKPOINTS_DIRECTORY, "file://" + checkpoints);
        var job = StreamExecutionEnvironment.createLocalEnvironment(2, settings);
        job.setRuntimeMode(RuntimeExecutionMode.STREAMING);
        job.enableCheckpointing(interval); // exactly once is the default mode
        job.getConfig().enableObjectReuse();
        var paths =
                files.stream()
                        .map(org.apache.flink.core.fs.Path::new)
                        .toArray(org.apache.flink.core.fs.Path[]::new);
        var source = FileSource.forRecordStreamFormat(new TextLineInputFormat(), paths).build();
        var target = new org.apache.flink.core.fs.Path(out);
        var sink =
                FileSink.forRowFormat(target, new SimpleStringEncoder<String>())
                        .withRollingPolicy(OnCheckpointRollingPolicy.build())
                        .build();
        job.fromSource(source, WatermarkStrategy.noWatermarks(), "words")
                .keyBy(word -> word, Types.STRING)
                .process(new Count())
                .returns(Types.STRING)
                .sinkTo(sink);
        job.execute("count");
    }

    /** One number per word; told at the end of the input. */
    public static class Count extends KeyedProcessFunction<String, String, String>
            implements CheckpointListener {
        transient ValueState<Long> count;

        @Override
        public void open(OpenContext context) {
            count = getRuntimeContext().getState(new ValueStateDescriptor<>("count", Types.LONG));
        }

        @Override
        public void processElement(String word, Context context, Collector<String> out)
                throws Exception {
            Long before = count.value();
            if (before == null) {
                context.timerService().registerEventTimeTimer(Long.MAX_VALUE);
            }
            count.update(before == null ? 1L : before + 1);
        }

        @Override
        public void onTimer(long time, OnTimerContext context, Collector<String> out)
                throws Exception {
            out.collect(context.getCurrentKey() + "\t" + count.value());
        }

        @Override
        public void notifyCheckpointComplete(long id) {
            if (getRuntimeContext().getTaskInfo().getIndexOfThisSubtask() == 0) {
                CHECKPOINTS.incrementAndGet();
            }
        }
    }
}
