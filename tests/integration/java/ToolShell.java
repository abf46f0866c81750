// Runs Kafka's command line tools one after the other in one JVM, since starting one takes longer than what it does.
//   java -cp 'libs/*' ToolShell.java
// reads lines `CLASS<TAB>ARGUMENT<TAB>…` and answers each with what the tool printed (both streams) and a line
// `\u0001 STATUS`. A tool that calls exit ends there, with that status.

import java.io.BufferedReader;
import java.io.ByteArrayOutputStream;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.lang.reflect.InvocationTargetException;
import java.util.Arrays;
import org.apache.kafka.common.utils.internals.Exit;

public class ToolShell {
    static class Ended extends Error {
        final int status;

        Ended(int status) {
            super(null, null, false, false);
            this.status = status;
        }
    }

    static int run(String[] words) throws Exception {
        String[] arguments = Arrays.copyOfRange(words, 1, words.length);
        try {
            Class.forName(words[0]).getMethod("main", String[].class).invoke(null, (Object) arguments);
            return 0;
        } catch (InvocationTargetException failed) {
            if (failed.getCause() instanceof Ended ended) {
                return ended.status;
            }
            failed.getCause().printStackTrace();
            return 1;
        }
    }

    public static void main(String[] unused) throws Exception {
        Exit.setExitProcedure((status, message) -> {
            throw new Ended(status);
        });
        PrintStream answers = System.out;
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in));
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            ByteArrayOutputStream printed = new ByteArrayOutputStream();
            PrintStream captured = new PrintStream(printed, true);
            System.setOut(captured);
            System.setErr(captured);
            int status = run(line.split("\t", -1));
            captured.flush();
            answers.write(printed.toByteArray());
            answers.println("\n\u0001 " + status);
            answers.flush();
        }
        System.exit(0);
    }
}
